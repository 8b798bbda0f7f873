"""What went wrong, in one line: Spark hands errors on with the whole way they came."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from jobq.errors import ConfigError

# As Python prints it at the end of a traceback, which is how an error of a Python worker arrives at the driver.
_OURS = re.compile(r"^jobq\.errors\.\w+: (.+)$", re.MULTILINE)


def jobq_message(error: PySparkException) -> str | None:
    """What jobq said in a Python worker; None if it was not jobq that failed."""
    said = _OURS.findall(str(error))
    return said[-1] if said else None


@contextmanager
def as_config_error(what: str) -> Iterator[None]:
    """What Spark says to an input that the user named is a ConfigError: a path that is not there, say."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as e:
        text = str(e.java_exception.getMessage()) if isinstance(e, Py4JJavaError) else str(e)
        raise ConfigError(f"{what}: {_first_line(text)}") from e


def _first_line(text: str) -> str:
    line = next((line for line in text.splitlines() if line.strip()), "no reason given")
    return re.sub(r"^\[[A-Z_.]+\] |\.? SQLSTATE: \w+", "", line.strip())
