"""The columns of format("jobq"), and options that all of its parts understand."""

from __future__ import annotations

from collections.abc import Mapping

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
EVENTS = struct({column.name: column.type for column in tables.EVENTS.body})
LINES = struct({"value": "string", "origin": "string"})


def required(options: Mapping[str, str], name: str) -> str:
    """An option that has to be there. Spark hands options over in lower case."""
    value = options.get(name.lower()) or options.get(name)
    if not value:
        raise ConfigError(f'format("jobq") needs .option("{name}", …)')
    return value


def store_url(options: Mapping[str, str]) -> str:
    """The store, one that other processes can reach."""
    url = required(options, "url")
    if url.startswith("memory:"):
        raise ConfigError(
            "memory:// lives in one process and Spark's workers are others: use sqlite:///, valkey:// or a server"
        )
    return url
