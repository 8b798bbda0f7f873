"""A task's definition: its name and, where this process has it, its function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jobq.core.calls import ArgumentDecoder, CallShape, is_plain
from jobq.core.codec import get_codec
from jobq.engine.builtin import GATHER, untagged
from jobq.errors import ConfigError


class Definition:
    """What a task and all its copies (`task.options(…)`) share."""

    def __init__(self, name: str, fn: Callable[..., Any] | None = None) -> None:
        self.name = name
        self.fn = fn
        self.shape = None if fn is None else CallShape(fn, name)
        self.decoder = None if fn is None else ArgumentDecoder(fn, name)
        self._returns: Any = None

    @property
    def returns(self) -> Any:
        """The return annotation, resolved at the first use. Any if no conversion is needed."""
        if self._returns is None:
            self._returns = self._look_up()
        return self._returns

    def _look_up(self) -> Any:
        if self.decoder is None:
            return Any
        try:
            self.decoder.resolve()
        except ConfigError:
            # A parameter's annotation is wrong. The worker reports it; results do not need it.
            return Any
        return Any if is_plain(self.decoder.returns) else self.decoder.returns

    def decode(self, codec: str, data: bytes) -> Any:
        """Decode a result and convert it to the return annotation."""
        return get_codec(codec).decode(data, self.returns)

    def bound(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The arguments by parameter name.

        If the function is not known here, positional arguments are named by their position."""
        if self.shape is not None:
            return self.shape.bound(args, kwargs)
        return {**{str(index): value for index, value in enumerate(args)}, **kwargs}

    def named(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The given arguments by parameter name, without defaults. Some may be missing.

        InvalidJob if the function cannot have these arguments."""
        if self.shape is not None:
            return self.shape.named(args, kwargs)
        return self.bound(args, kwargs)


class Gathered(Definition):
    """The definition of the job that `group` adds: its result is the list of a task's results."""

    def __init__(self, each: Definition) -> None:
        super().__init__(GATHER)
        self._each = each

    def decode(self, codec: str, data: bytes) -> Any:
        """Decode the list and convert each item to the task's return annotation.

        With `on_child_failure="continue"` a failed member appears as its Failure."""
        return [
            untagged(item, self._each.returns) for item in get_codec(codec).decode(data, list[Any])
        ]
