"""`Permissions`: what a job in its own process may read, write and use."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from jobq.core.policies._base import policy, set_fields
from jobq.core.values.checks import Seconds, check_bytes, check_int, shown, to_ms
from jobq.errors import ConfigError

Enforce = Literal["all", "best-effort"]
_ENFORCE: tuple[Enforce, ...] = ("all", "best-effort")

MIN_MEMORY = 64 * 2**20
"""Bytes. Python with jobq takes about 40 MB of address space before a handler runs."""
MIN_FILES = 32
"""Open files. A child uses about ten itself, and imports open a few at once."""


@policy
class Permissions:
    """What a job in the `process` or `command` executor may access. The kernel enforces it.

    Nothing is allowed unless it is named. `read` and `write` are absolute paths of files or
    folders; `write` does not include `read`. The worker opens them when it starts, and refuses a
    path below one that any of its tasks may write. `run` are absolute paths of programs. `network`
    is False, True, or a list of TCP ports that the job may connect to. `env` are names of
    variables.

    `memory` is the address space of each process, in bytes or as "512M". `cpu` is seconds of
    processor time per job, with all its processes. `files` is how many files each process may have
    open at once. `processes` is how many processes the job may start; threads count as well unless
    it is 0.

    A worker refuses to start a task whose permissions its kernel cannot enforce.
    `enforce="best-effort"` logs what is missing instead, and enforces the rest.
    """

    read: tuple[str, ...]
    write: tuple[str, ...]
    run: tuple[str, ...]
    network: bool | tuple[int, ...]
    env: tuple[str, ...]
    memory: int | None
    cpu_ms: int | None
    files: int | None
    processes: int
    enforce: Enforce

    def __init__(
        self,
        *,
        read: Sequence[str] = (),
        write: Sequence[str] = (),
        run: Sequence[str] = (),
        network: bool | Sequence[int] = False,
        env: Sequence[str] = (),
        memory: str | int | None = None,
        cpu: Seconds | None = None,
        files: int | None = None,
        processes: int = 0,
        enforce: Enforce = "all",
    ) -> None:
        set_fields(
            self,
            read=_paths(read, "read"),
            write=_paths(write, "write"),
            run=_paths(run, "run"),
            network=_network(network),
            env=_variables(env),
            memory=None if memory is None else _bytes(memory),
            cpu_ms=None if cpu is None else _cpu_ms(cpu),
            files=None
            if files is None
            else check_int(files, "Permissions files", low=MIN_FILES, error=ConfigError),
            processes=check_int(processes, "Permissions processes", error=ConfigError),
            enforce=_enforce(enforce),
        )


def _network(value: object) -> bool | tuple[int, ...]:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ConfigError(
            f"Permissions network={shown(value)} is not True, False or a list of TCP ports"
        )
    ports = tuple(value)
    for port in ports:
        if isinstance(port, str):
            raise ConfigError(
                f"Permissions network: {shown(port)} is not a port number. The kernel restricts "
                "TCP ports, not hosts: give ports, e.g. network=[443], and use an egress proxy to "
                "restrict hosts"
            )
        check_int(port, "Permissions network: port", low=1, high=65535, error=ConfigError)
    return tuple(sorted(set(ports))) or False


def _paths(value: object, option: str) -> tuple[str, ...]:
    paths = _texts(value, option)
    for path in paths:
        if not path.startswith("/"):
            raise ConfigError(
                f"Permissions {option}: {shown(path)} is not an absolute path. Permissions do not "
                "depend on the folder that a worker starts in"
            )
    return paths


def _variables(value: object) -> tuple[str, ...]:
    names = _texts(value, "env")
    for name in names:
        if "=" in name:
            raise ConfigError(f"Permissions env: {shown(name)} is not the name of a variable")
    return names


def _enforce(value: object) -> str:
    if value not in _ENFORCE:
        raise ConfigError(
            f"Permissions enforce={shown(value)} is not one of {', '.join(map(repr, _ENFORCE))}"
        )
    return str(value)


def _cpu_ms(value: Seconds) -> int:
    """Processor time in whole seconds, rounded up: the kernel counts seconds."""
    ms = to_ms(value, "Permissions cpu", positive=True, error=ConfigError)
    return -(-ms // 1000) * 1000


def _texts(value: object, option: str) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ConfigError(f"Permissions {option}={shown(value)} is not a list of strings")
    items = tuple(value)
    for item in items:
        if not isinstance(item, str) or not item or "\0" in item:
            raise ConfigError(f"Permissions {option}: {shown(item)} is not a name")
    return items


def _bytes(value: object) -> int:
    size = check_bytes(value, "Permissions memory")
    if size < MIN_MEMORY:
        raise ConfigError(
            f"Permissions memory={shown(value)} is less than {MIN_MEMORY // 2**20}M, which Python "
            "itself needs"
        )
    return size
