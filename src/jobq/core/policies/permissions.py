"""`Permissions`: what a job in its own process may read, write and use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from jobq.core import checks
from jobq.core.checks import Seconds, shown, to_ms
from jobq.core.policies._base import policy, set_fields
from jobq.errors import ConfigError

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


@policy
class Permissions:
    """What a job in the `process` or `command` executor may access.

    This version has neither of these executors: a worker refuses to start a task with permissions.

    Nothing is allowed unless it is named. `read` and `write` are paths, `env` are names of
    variables, `memory` is bytes or "512M", and `cpu` is seconds of processor time.
    """

    read: tuple[str, ...]
    write: tuple[str, ...]
    network: bool
    env: tuple[str, ...]
    memory: int | None
    cpu_ms: int | None

    def __init__(
        self,
        *,
        read: Sequence[str] = (),
        write: Sequence[str] = (),
        network: bool = False,
        env: Sequence[str] = (),
        memory: str | int | None = None,
        cpu: Seconds | None = None,
    ) -> None:
        set_fields(
            self,
            read=_texts(read, "read"),
            write=_texts(write, "write"),
            network=checks.check_bool(network, "Permissions network", error=ConfigError),
            env=_texts(env, "env"),
            memory=None if memory is None else _bytes(memory),
            cpu_ms=None
            if cpu is None
            else to_ms(cpu, "Permissions cpu", positive=True, error=ConfigError),
        )


def _texts(value: object, option: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ConfigError(f"Permissions {option}={shown(value)} is not a list of strings")
    items = tuple(value)
    for item in items:
        if not isinstance(item, str) or not item or "\0" in item:
            raise ConfigError(f"Permissions {option}: {shown(item)} is not a name")
    return items


def _bytes(value: object) -> int:
    if type(value) is int and value > 0:
        return value
    if isinstance(value, str) and (
        match := re.fullmatch(r"\s*([1-9]\d*)\s*([KMGT]?)(?:i?B)?\s*", value, re.IGNORECASE)
    ):
        return int(match[1]) * _UNITS[match[2].upper()]
    raise ConfigError(f'Permissions memory={shown(value)} is not a size: give bytes, or "512M"')
