"""The columns of format("jobq"), and the options that all its readers and writers share."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from jobq.core.values.checks import did_you_mean
from jobq.core.values.printable import redacted_url
from jobq.errors import ConfigError
from jobq.pipeline import tables
from jobq.pipeline.tables import struct

JOBS = struct(
    {
        **dict.fromkeys(("tenant", "queue", "id", "name", "state"), "string"),
        **dict.fromkeys(("args", "kwargs", "result", "progress"), "string"),  # as JSON
        **dict.fromkeys(("reason", "error_type", "error_message", "key", "worker"), "string"),
        **dict.fromkeys(("priority", "attempt", "failures", "stalls", "life"), "int"),
        **dict.fromkeys(("created_at", "due_at", "started_at", "finished_at"), "timestamp"),
    }
)
# A store has no fields that this version does not know, and its events came in no batch.
_OF_THE_LAKE = ("more", "arrival")
EVENTS = struct({c.name: c.type for c in tables.EVENTS.body if c.name not in _OF_THE_LAKE})
LINES = struct({"value": "string", "origin": "string"})


_ALWAYS = ("url", "tenant", "queue")
_OF_SPARK = ("checkpointLocation", "path", "queryName")  # Spark passes its own options of streams


def check_options(
    options: Mapping[str, str], known: Iterable[str], *, stream: bool = False
) -> None:
    """Raise ConfigError for an option that nothing reads, because it is most likely a typo.

    Spark passes the names of options in lower case."""
    names = {name.lower(): name for name in (*_ALWAYS, *known, *(_OF_SPARK if stream else ()))}
    for given in options:
        if given.lower() not in names:
            near = did_you_mean(given.lower(), names)
            raise ConfigError(
                f'unknown .option("{given}", …) of format("jobq")'
                + (near or f": the options are {', '.join(sorted(names.values()))}")
            )


def lowered(options: Mapping[str, str]) -> dict[str, str]:
    """The options with their names in lower case."""
    return {name.lower(): value for name, value in options.items()}


def flag(options: Mapping[str, str], name: str) -> bool:
    """An option that is true or false. The default is false."""
    value = lowered(options).get(name.lower(), "false")
    if value.lower() not in ("true", "false"):
        raise ConfigError(f'.option("{name}", "{value}"): use true or false')
    return value.lower() == "true"


def count_of(options: Mapping[str, str], name: str, default: int) -> int:
    """An option that is a number of at least 1."""
    value = lowered(options).get(name.lower(), str(default))
    if not value.isascii() or not value.isdigit() or int(value) == 0:
        raise ConfigError(f'.option("{name}", "{value}"): use a number of at least 1')
    return int(value)


def required(options: Mapping[str, str], name: str) -> str:
    """Get a mandatory option. Spark passes the names of options in lower case."""
    value = options.get(name.lower()) or options.get(name)
    if not value:
        raise ConfigError(f'format("jobq") needs .option("{name}", …)')
    return value


def store_url(options: Mapping[str, str]) -> str:
    """Get the store's URL. Raises ConfigError for memory://, which Spark's workers cannot reach."""
    url = required(options, "url")
    if url.startswith("memory:"):
        raise ConfigError(
            "memory:// is visible in one process only, and Spark's workers are other processes: "
            "use sqlite:///, valkey:// or postgresql://"
        )
    return absolute_url(url)


def absolute_url(url: str) -> str:
    """The URL with the whole path of a SQLite file: Spark's workers may run in other folders."""
    parts = urlsplit(url)
    if parts.scheme != "sqlite" or parts.netloc or not parts.path[1:]:
        return url
    path = quote(os.path.abspath(unquote(parts.path[1:])))
    return f"sqlite:///{path}" + (f"?{parts.query}" if parts.query else "")


def existing_store_url(options: Mapping[str, str]) -> str:
    """Get the URL of a store to read. Raises ConfigError if it is a file that does not exist."""
    url = store_url(options)
    check_exists(url)
    return url


def check_exists(url: str) -> None:
    """Raise ConfigError if a SQLite file does not exist: to open it would make an empty store."""
    parts = urlsplit(url)
    path = Path(unquote(parts.path.removeprefix("/")))
    if parts.scheme == "sqlite" and not path.exists():
        raise ConfigError(
            f"no store at {redacted_url(url)}: the file {path.absolute()} does not exist"
        )
