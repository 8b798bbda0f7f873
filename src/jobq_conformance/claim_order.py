"""Checks the order of starts in a log, for histories without an exact model."""

from __future__ import annotations

from jobq.core.records.events import EventRecord
from jobq.core.records.states import Kind, State

BACK_IN_FRONT = frozenset({Kind.STALLED, Kind.RELEASED, Kind.LIMITED})


def check_order(events: list[EventRecord]) -> None:
    """Inside a key, first starts follow the order of becoming waiting, and recovered jobs go before
    them.

    What one call did has no order among its jobs in the log.
    """
    calls = {position: n for n, position in enumerate(dict.fromkeys(e.position for e in events))}
    waiting: dict[str, EventRecord] = {}
    for event in events:
        if event.state is State.WAITING:
            waiting[event.job] = event
            continue
        entered = waiting.pop(event.job, event)
        if event.kind is Kind.STARTED and event.attempt == 1:
            for other in waiting.values():
                earlier = calls[other.position] < calls[entered.position]
                came_back = (
                    other.kind in BACK_IN_FRONT and calls[other.position] < calls[event.position]
                )
                if other.key == event.key and _priority(other) == _priority(event):
                    assert not came_back, (
                        f"{event.job} started before {other.job}, which had come back"
                    )
                    assert not (earlier and other.attempt == 0), (
                        f"{event.job} started before {other.job}"
                    )


def _priority(event: EventRecord) -> int:
    """Events do not tell priorities, so the machine writes them into the job's name."""
    return int(event.name.partition(":")[2] or 0)
