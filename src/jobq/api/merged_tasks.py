"""The tasks of two Queue objects that stand for the same queue, as one mapping."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from jobq.engine.handler import Handler


class MergedTasks(Mapping[str, Handler]):
    """The tasks of two Queue objects for the same queue. Tasks added later are found too; if both
    have a task of the same name, the first one counts."""

    def __init__(self, first: Mapping[str, Handler], second: Mapping[str, Handler]) -> None:
        self._first = first
        self._second = second

    def __getitem__(self, name: str) -> Handler:
        return self._first[name] if name in self._first else self._second[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._first, **self._second})

    def __len__(self) -> int:
        return len({*self._first, *self._second})
