"""What must hold of a story, as predicates over the events of a scene's queue."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from jobq.core.records.events import EventRecord
from jobq.core.records.queues import RateData
from jobq.core.records.states import Kind, State
from jobq.core.rules import limits
from jobq.core.rules.limits import RateState
from tests.pairs.scene import Scene

IN_FRONT = frozenset(
    {Kind.STALLED, Kind.RELEASED, Kind.LIMITED}
)  # such a job returns to the place it had


@dataclass
class Stand:
    """Where a waiting job stands: among those of its key and priority, lower places start first."""

    line: tuple[str | None, int]
    place: int


def check_order(scene: Scene) -> None:
    """Order: by priority, then by when a job became waiting. Recovered jobs keep their place, and
    lifo jobs go to the front."""
    waiting: dict[str, Stand] = {}
    places: dict[str, int] = {}
    for n, event in enumerate(scene.events, 1):
        if event.kind is Kind.STARTED:
            _check_start(scene, event, waiting.pop(event.job), waiting)
        elif event.state is State.WAITING and not (
            event.kind is Kind.CHANGED and event.previous is State.WAITING
        ):
            places[event.job] = _place(scene, event, n, places.get(event.job, n))
            waiting[event.job] = Stand(
                (event.key, scene.specs[event.job].priority), places[event.job]
            )
        elif event.state is not State.WAITING:
            waiting.pop(event.job, None)


def _place(scene: Scene, event: EventRecord, n: int, before: int) -> int:
    """The place of a job that becomes waiting as the n-th event."""
    if event.kind in IN_FRONT:
        return before
    if event.attempt > 0 and event.kind is not Kind.RERUN:
        return before if event.key is not None else n  # a key's started jobs return to its front
    return -n if scene.specs[event.job].lifo else n


def _check_start(scene: Scene, event: EventRecord, stand: Stand, waiting: dict[str, Stand]) -> None:
    key, priority = stand.line
    for job, other in waiting.items():
        if other.line[0] != key:
            continue
        what_happened = f"{scene.short(event.job)} started before {scene.short(job)}"
        assert other.line[1] <= priority, f"{what_happened}, which has a higher priority"
        assert other.line[1] < priority or other.place > stand.place, (
            f"{what_happened}, which was in front of it"
        )


def check_limits(scene: Scene) -> None:
    """Never more active jobs than the limits of the queue and of its keys allow."""
    active: dict[str, str | None] = {}
    for event in scene.events:
        if event.state is State.ACTIVE:
            active[event.job] = event.key
            if scene.limits.limit is not None:
                assert len(active) <= scene.limits.limit, (
                    f"{scene.short(event.job)} is one too many"
                )
            if event.key is not None and scene.limits.key_limit is not None:
                assert Counter(active.values())[event.key] <= scene.limits.key_limit, (
                    f"{scene.short(event.job)}: its key is full"
                )
        else:
            active.pop(event.job, None)


def check_rates(scene: Scene) -> None:
    """core/rules/limits.py allows every start under the rates of the queue and of the key."""
    for rate, per_key in ((scene.limits.rate, False), (scene.limits.key_rate, True)):
        if rate is not None:
            _check_rate(scene, rate, per_key=per_key)


def _check_rate(scene: Scene, rate: RateData, *, per_key: bool) -> None:
    states: dict[str | None, RateState | None] = {}
    for event in scene.events:
        if event.kind is Kind.STARTED:
            key = event.key if per_key else None
            taken = limits.take(rate, states.get(key), event.at_ms, scene.specs[event.job].cost)
            assert taken.allowed, (
                f"{scene.short(event.job)} started {taken.retry_in_ms} ms too early for {rate}"
            )
            states[key] = taken.state


def check_counters(scene: Scene) -> None:
    """`attempt` counts every start, in all lives. Only failed runs count as failures."""
    starts = [e.attempt for e in scene.of_subject() if e.kind is Kind.STARTED]
    assert starts == list(range(1, len(starts) + 1)), f"attempts: {starts}"
    assert [lease.attempt for lease in scene.leases] == starts, (
        "leases and the log disagree about starts"
    )


def check_everything(scene: Scene) -> None:
    """What holds of every scene, whatever its features."""
    check_order(scene)
    check_limits(scene)
    check_rates(scene)
    check_counters(scene)


def first_start(scene: Scene) -> EventRecord | None:
    """The subject's first start."""
    return next((e for e in scene.of_subject() if e.kind is Kind.STARTED), None)
