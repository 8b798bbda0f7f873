"""A small explicit-state model checker. It searches breadth first: counterexamples are short."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)
Step = tuple[str, S]
"""What happens, and the state after it."""


class TooLarge(Exception):
    """The model has more states than the caller allows."""


@dataclass(frozen=True)
class Explored(Generic[S]):
    """What a search found. `broken` is an invariant; `trace` leads from the beginning to it."""

    states: int
    steps: int
    broken: str | None = None
    trace: tuple[str, ...] = ()


def explore(
    beginning: S,
    steps: Callable[[S], Iterable[Step[S]]],
    broken: Callable[[S], str | None],
    *,
    good: Callable[[S], bool],
    most: int = 2_000_000,
) -> Explored[S]:
    """Visit every state that can be reached. From each one a good state must be reachable."""
    came: dict[S, tuple[S, str] | None] = {beginning: None}
    before: dict[S, list[S]] = {}
    waiting = deque([beginning])
    made = 0
    while waiting:
        state = waiting.popleft()
        if (found := broken(state)) is not None:
            return Explored(len(came), made, found, tuple(_trace(came, state)))
        for name, after in steps(state):
            made += 1
            before.setdefault(after, []).append(state)
            if after not in came:
                came[after] = (state, name)
                waiting.append(after)
                if len(came) > most:
                    raise TooLarge(f"more than {most:,} states")
    stuck = _first_stuck(came, before, good)
    if stuck is not None:
        return Explored(len(came), made, "the jobs can never end", tuple(_trace(came, stuck)))
    return Explored(len(came), made)


def _first_stuck(
    came: dict[S, tuple[S, str] | None], before: dict[S, list[S]], good: Callable[[S], bool]
) -> S | None:
    """A state from which no good one can be reached."""
    reaches = {state for state in came if good(state)}
    waiting = deque(reaches)
    while waiting:
        for state in before.get(waiting.popleft(), ()):
            if state not in reaches:
                reaches.add(state)
                waiting.append(state)
    return next((state for state in came if state not in reaches), None)


def _trace(came: dict[S, tuple[S, str] | None], state: S) -> Iterator[str]:
    names: list[str] = []
    while (found := came[state]) is not None:
        state, name = found
        names.append(name)
    yield from reversed(names)
