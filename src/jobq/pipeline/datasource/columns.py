"""The columns of format("jobq"), and the options that all its readers and writers share."""

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
# A store has no fields that this version does not know, and its events came in no batch.
_OF_THE_LAKE = ("more", "arrival")
EVENTS = struct({c.name: c.type for c in tables.EVENTS.body if c.name not in _OF_THE_LAKE})
LINES = struct({"value": "string", "origin": "string"})


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
            "use sqlite:/// or valkey://"
        )
    return url
