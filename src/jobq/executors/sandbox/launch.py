"""Starts a command with permissions.

The launcher is a process between the worker and the command. It restricts itself and then becomes
the command by `exec`, so the command has the launcher's process id. If the command cannot be
started, the launcher prints why and exits with 126, or with 127 if there is no such program, as a
shell does.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

import msgspec

from jobq.core.policies import Permissions
from jobq.errors import ConfigError
from jobq.executors.sandbox.apply import apply
from jobq.executors.sandbox.workspace import Workspace

NOT_STARTED = 126
NOT_FOUND = 127

_KEPT = frozenset({"LANG", "LANGUAGE", "PATH", "TZ", "TMPDIR", "HOME"})
# As for children of the pool, Python's path is the worker's. `python -m` would add the current
# folder, and the command could read it.
_BOOT = (
    "import sys; end = int(sys.argv[1]) + 2; "
    "sys.path[:], sys.argv[1:] = sys.argv[2:end], sys.argv[end:]; "
    "from jobq.executors.sandbox.launch import launch; launch()"
)
_SHEBANG_LENGTH = 256
"""Bytes. The kernel reads no more of a script's first line."""


@dataclass(frozen=True)
class Order:
    """What the launcher is told: the permissions, and what else the command gets."""

    permissions: Permissions
    workspace: Workspace
    variables: dict[str, str] = field(default_factory=dict)
    """Variables of the command besides those that its permissions name."""
    keep_fds: tuple[int, ...] = ()
    env: tuple[str, ...] = ()
    """Names of more variables. Not their values: others can read a command line."""

    def encode(self) -> str:
        """The order as an argument for the launcher."""
        return msgspec.json.encode(self).decode()


def command(order: Order, arguments: Sequence[str]) -> list[str]:
    """The command line that starts the launcher with an order."""
    path = [str(len(sys.path)), *sys.path]
    return [sys.executable, "-c", _BOOT, *path, order.encode(), *arguments]


def launch() -> NoReturn:
    """The program of the launcher: the order and the arguments are in `sys.argv`."""
    sys.exit(main(msgspec.json.decode(sys.argv[1], type=Order), sys.argv[2:]))


def main(order: Order, arguments: Sequence[str]) -> int:
    """Become the command. Returns an exit code if that is not possible."""
    program = shutil.which(arguments[0])
    if program is None:
        return _give_up(f"there is no program {arguments[0]}", NOT_FOUND)
    program = os.path.abspath(program)
    more = {name: os.environ[name] for name in order.env if name in os.environ}
    try:
        apply(
            order.permissions,
            keep_fds=order.keep_fds,
            workspace=order.workspace,
            run=[program, *_interpreter(program)],
        )
        named = {*_KEPT, *order.permissions.env}
        kept = {k: v for k, v in os.environ.items() if k in named or k.startswith("LC_")}
        for fd in order.keep_fds:
            os.set_inheritable(fd, True)
        os.execve(program, list(arguments), {**kept, **more, **order.variables})
    except (OSError, ConfigError) as error:
        return _give_up(f"{program} cannot be started: {error}", NOT_STARTED)


def _interpreter(program: str) -> list[str]:
    """The program that a script's first line names. It is allowed to run with the script."""
    with open(program, "rb") as file:
        line = file.read(_SHEBANG_LENGTH).split(b"\n", 1)[0]
    words = line[2:].split() if line.startswith(b"#!") else []
    return [os.fsdecode(words[0])] if words else []


def _give_up(reason: str, code: int) -> int:
    sys.stderr.write(f"{reason}\n")
    return code
