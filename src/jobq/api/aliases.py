"""Aliases: a task also runs jobs that were stored under its old names.

An old name may come with an upgrader, which turns the arguments of an old job into those of the
function as it is now. So a task can be renamed, or its parameters changed, while old jobs are
queued and old producers run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jobq.api.task_handler import runs_async
from jobq.core import checks
from jobq.core.calls import ArgumentDecoder, CallShape
from jobq.core.checks import shown
from jobq.core.codec import Codec
from jobq.core.records import Input
from jobq.errors import ConfigError, InvalidJob, UnfitArguments

Upgrader = Callable[..., Mapping[str, Any] | Sequence[Any]]
"""Takes the arguments of an old job. Returns those of the function: a dict of named ones, or a list
or tuple of positional ones."""


def check_aliases(value: object, task: str) -> dict[str, Upgrader | None]:
    """The old names of a task, each with its upgrader. ConfigError if the option is wrong."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        aliases = dict(value)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        aliases = dict.fromkeys(value)
    else:
        raise ConfigError(
            f"aliases={shown(value)} of task {task}: give a list of old names, or a dict of old "
            "names and the functions that upgrade their arguments"
        )
    for name, upgrade in aliases.items():
        checks.check_task_name(name, error=ConfigError)
        if name == task:
            raise ConfigError(f"aliases of task {task}: {name!r} is the task's present name")
        if upgrade is not None and (not callable(upgrade) or runs_async(upgrade)):
            raise ConfigError(
                f"aliases of task {task}: {shown(upgrade)}, which upgrades {name!r}, is not a "
                "plain function"
            )
    return aliases


class UpgradingDecoder(ArgumentDecoder):
    """Decodes the arguments of an old job by its upgrader's annotations, and upgrades them."""

    __slots__ = ("_shape", "_upgrade")

    def __init__(self, upgrade: Upgrader, name: str, shape: CallShape) -> None:
        """`name` is the old name, and `shape` is that of the function as it is now."""
        super().__init__(upgrade, name)
        self._upgrade = upgrade
        self._shape = shape

    def decode(
        self, payload: bytes, codec: Codec, inputs: Sequence[Input] = ()
    ) -> tuple[list[Any], dict[str, Any]]:
        """The arguments for the function as it is now. UnfitArguments if they do not fit it."""
        old_args, old_kwargs = super().decode(payload, codec, inputs)
        new = self._upgrade(*old_args, **old_kwargs)
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        if isinstance(new, Mapping):
            kwargs = dict(new)
        elif isinstance(new, (list, tuple)):
            args = list(new)
        else:
            raise InvalidJob(
                f"the function that upgrades jobs of {self.name} returned {shown(new)}: it must "
                "return a dict of named arguments, or a list or tuple of positional ones"
            )
        try:
            self._shape.check(args, kwargs)
        except InvalidJob as error:
            raise UnfitArguments(str(error)) from None
        return args, kwargs
