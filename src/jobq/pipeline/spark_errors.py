"""Find the one line of a Spark error that a user needs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException

from jobq.errors import ConfigError

# An error of a Python worker arrives at the driver as a traceback, which ends with this line.
_OURS = re.compile(r"^jobq\.errors\.\w+: (.+)$", re.MULTILINE)


def jobq_message(error: PySparkException) -> str | None:
    """The message of a jobq error that a Python worker raised, or None if it was another error."""
    messages = _OURS.findall(str(error))
    return messages[-1] if messages else None


@contextmanager
def as_config_error(what: str) -> Iterator[None]:
    """Turn Spark's errors about a user's input, e.g. a missing path, into ConfigError."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as e:
        text = str(e.java_exception.getMessage()) if isinstance(e, Py4JJavaError) else str(e)
        raise ConfigError(f"{what}: {_first_line(text)}") from e


def _first_line(text: str) -> str:
    line = next((line for line in text.splitlines() if line.strip()), "no reason given")
    return re.sub(r"^\[[A-Z_.]+\] |\.? SQLSTATE: \w+", "", line.strip())
