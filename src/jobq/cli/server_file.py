"""The configuration file of a jq-server, as far as it concerns a worker.

Server and workers of an installation may share one file. A worker takes what both have: logging,
the lease and the grace time. The rest is the server's: a worker reaches the store through the
server, and has ports of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from jobq.errors import ConfigError

_OPTIONS = {
    "logging.level": "log_level",
    "logging.format": "log_format",
    "scheduler.worker_heartbeat_timeout_s": "lease",
    "shutdown_grace_period": "drain",
}
"""Keys of the file, and the options of jq-worker that they set."""


def is_server_config(values: Mapping[Any, Any]) -> bool:
    """Whether a file is a server's: it has sections. Options of jq-worker have none."""
    return any(isinstance(value, dict) for value in values.values())


def worker_options(path: Path, environment: Mapping[str, str]) -> dict[str, Any]:
    """What a server's file says about a worker, overridden by the variables of the server's keys. A
    wrong key is an error, as for the server."""
    from jobq.server import config

    try:
        loaded = config.load(path, environment)
    except ConfigError as error:
        raise click.BadParameter(str(error)) from None
    return {
        option: _value(loaded.config, key)
        for key, option in _OPTIONS.items()
        if key in loaded.given
    }


def _value(found: Any, key: str) -> Any:
    for part in key.split("."):
        found = getattr(found, part)
    return found
