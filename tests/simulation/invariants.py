"""What must be true of every world: the promises of jobq, as checks of the evidence.

`conformance.audit` has already compared the log with the records and the counters: the events of
each job follow each other legally, and each life ends at most once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import groupby

import msgspec

from jobq.core.records.events import EventRecord
from jobq.core.records.states import ENDED, Kind, State
from tests.model.replay import replay
from tests.simulation.app import WITH_TIMEOUT, Execution
from tests.simulation.faults import CallFault, Freeze, Jump, Kill, OutageOf
from tests.simulation.run import Evidence
from tests.simulation.scenario import CALM_FATES, FATES, Scenario

Attempt = tuple[str, str, int, int]
"""Queue, job, life and attempt."""

SLACK_MS = 1
"""The store counts in whole milliseconds."""


def check(evidence: Evidence) -> list[str]:
    """Everything that is wrong."""
    attempts = attempts_of(evidence)
    return [
        *nothing_lost(evidence),
        *runs_are_attempts(evidence, attempts),
        *ends_were_returned(evidence),
        *stalls_explained(evidence),
        *late_starts(evidence, attempts),
        *starts_promptly(evidence),
        *key_order(evidence),
        *limits_kept(evidence),
        *unique_alone(evidence),
        *flows_whole(evidence),
        *fires_once(evidence),
        *steps_once(evidence),
        *dead_letters(evidence),
        *shipped_whole(evidence),
        *exchanges_follow_the_model(evidence),
    ]


def attempts_of(evidence: Evidence) -> dict[Attempt, list[EventRecord]]:
    """The events of each attempt: its start, and how it ended."""
    found: dict[Attempt, list[EventRecord]] = defaultdict(list)
    for queue, events in evidence.events.items():
        for event in events:
            if event.kind is Kind.STARTED or event.previous is State.ACTIVE:
                found[queue, event.job, event.life, event.attempt].append(event)
    return found


def nothing_lost(evidence: Evidence) -> Iterator[str]:
    """Every job that was acknowledged is in the log, and has ended."""
    for id, queue in evidence.ledger.accepted.items():
        story = [event for event in evidence.events.get(queue, []) if event.job == id]
        if not story:
            yield f"{id} of {queue} was acknowledged and is lost"
        elif story[-1].state not in ENDED:
            yield f"{id} of {queue} is {story[-1].state} at the end"


def runs_are_attempts(
    evidence: Evidence, attempts: dict[Attempt, list[EventRecord]]
) -> Iterator[str]:
    """Each call of a handler belongs to a start in the log, and no start has two calls."""
    seen: Counter[Attempt] = Counter()
    for run in evidence.ledger.runs:
        attempt = (run.queue, run.job, run.life, run.attempt)
        seen[attempt] += 1
        if seen[attempt] == 2:
            yield f"{run.job}/{run.attempt} ran twice in one attempt"
        events = attempts.get(attempt)
        if not events or events[0].kind is not Kind.STARTED:
            yield f"{run.job}/{run.attempt} ran on {run.worker} and has no start in the log"
        elif events[0].worker != run.worker:
            yield f"{run.job}/{run.attempt} ran on {run.worker}, not on {events[0].worker}"


def ends_were_returned(evidence: Evidence) -> Iterator[str]:
    """A job is completed only if the handler of that attempt returned, with that result."""
    runs = {(run.queue, run.job, run.life, run.attempt): run for run in evidence.ledger.runs}
    for queue, events in evidence.events.items():
        for event in events:
            if event.kind is not Kind.COMPLETED or event.name == "batch":
                continue
            run = runs.get((queue, event.job, event.life, event.attempt))
            if run is None or run.how != "returned":
                how = "did not run" if run is None else run.how
                yield f"{event.job}/{event.attempt} is completed, and its handler {how}"
    for queue, records in evidence.records.items():
        for record in records.values():
            if record.state is State.COMPLETED and record.name in _NAMED_RESULTS:
                result = msgspec.json.decode(record.result or b"null")
                if result != f"{record.id}/{record.attempt}":
                    yield f"{record.id} of {queue} has the result {result} of another attempt"
            if (
                record.state is State.COMPLETED
                and record.name == "batch"
                and msgspec.json.decode(record.result or b"null") != record.id
            ):
                yield f"{record.id} has the result of another job of its batch"


_NAMED_RESULTS = frozenset(
    {"work", "crunch", "steps", "cursor", "total", "index", "deliver", "squeeze"}
)


# ── leases ────────────────────────────────────────────────────────────────────────────────────────


def stalls_explained(evidence: Evidence) -> Iterator[str]:
    """A worker loses a lease only if something was wrong with it, its network or the clock."""
    scenario = evidence.scenario
    if scenario.slow or any(isinstance(fault, Jump) for fault in scenario.faults):
        return
    troubled = troubled_processes(scenario) | {p.name for p in evidence.world.all if not p.alive}
    if None in troubled:
        return
    blocked = {process.name for process in evidence.world.all if process.blocked}
    for queue, events in evidence.events.items():
        last: dict[str, str | None] = {}
        for event in events:
            worker = last.get(event.job)
            if event.kind is Kind.STARTED:
                last[event.job] = event.worker
            elif _is_stall(event) and worker not in troubled:
                # A run that cannot be stopped at its timeout loses its lease on purpose.
                on_purpose = worker in blocked and event.name in WITH_TIMEOUT
                if not on_purpose:
                    yield f"{event.job}/{event.attempt} of {queue} stalled on {worker}"


def troubled_processes(scenario: Scenario) -> set[str | None]:
    """The processes that a fault concerns which may cost a lease. None: all of them."""
    found: set[str | None] = set()
    for fault in scenario.faults:
        if isinstance(fault, CallFault) and fault.is_short:
            continue
        if isinstance(fault, CallFault | Kill | OutageOf):
            found.add(fault.process)
        elif isinstance(fault, Freeze) and not fault.main_only:
            found |= {f"{fault.seat}.{n}" for n in range(20)}
    return found


def _is_stall(event: EventRecord) -> bool:
    return event.kind is Kind.STALLED or (event.kind is Kind.FAILED and event.reason == "stalled")


def late_starts(evidence: Evidence, attempts: dict[Attempt, list[EventRecord]]) -> Iterator[str]:
    """No handler starts when its lease has been taken away because it had expired."""
    if any(isinstance(fault, Jump) for fault in evidence.scenario.faults):
        return
    for run in evidence.ledger.runs:
        events = attempts.get((run.queue, run.job, run.life, run.attempt), [])
        for event in events[1:]:
            if _is_stall(event) and _ms(evidence, run) > event.at_ms + SLACK_MS:
                yield f"{run.job}/{run.attempt} started on {run.worker} after it had stalled"


def _ms(evidence: Evidence, run: Execution) -> int:
    return int(run.start * 1000) + evidence.world.wall_offset_ms


PROMPT_MS = 2_000
"""Milliseconds in which an idle worker claims a job. Without a wake-up it would take up to 5 s."""


def starts_promptly(evidence: Evidence) -> Iterator[str]:
    """In a calm world, a job of a plain queue starts at once if a worker has a free slot."""
    if not is_calm(evidence.scenario):
        return
    slots, active = sum(evidence.scenario.workers), 0
    since: dict[str, int] = {}  # by job: since when it waits while a slot is free
    events = (event for events in evidence.events.values() for event in events if event.job)
    times = groupby(sorted(events, key=_at_ms), key=_at_ms)
    for at_ms, at_once in ((at_ms, list(group)) for at_ms, group in times):
        # Events of one call, in several queues, have the same time and no order.
        if active == slots and any(event.previous is State.ACTIVE for event in at_once):
            since = dict.fromkeys(since, at_ms)
        for event in at_once:
            active -= event.previous is State.ACTIVE
            since_ms = since.pop(event.job, at_ms)
            if event.kind is Kind.STARTED:
                active += 1
                if event.queue.queue == "plain" and at_ms - since_ms > PROMPT_MS:
                    waited = at_ms - since_ms
                    yield f"{event.job}/{event.attempt} waited {waited} ms for an idle worker"
            elif event.state is State.WAITING:
                since[event.job] = at_ms


def _at_ms(event: EventRecord) -> int:
    return event.at_ms


def is_calm(scenario: Scenario) -> bool:
    """Whether nothing keeps workers from their work."""
    fates = {fate for action in scenario.actions for fate in _fates(action.args)}
    return not (
        scenario.faults
        or scenario.lossy
        or scenario.slow
        or fates & (set(FATES) - set(CALM_FATES))
        or any(action.what in ("pause", "hold", "restart") for action in scenario.actions)
    )


def _fates(args: tuple[object, ...]) -> list[str]:
    return [fate for arg in args if isinstance(arg, list) for fate in arg]


# ── order and limits ──────────────────────────────────────────────────────────────────────────────


def key_order(evidence: Evidence) -> Iterator[str]:
    """Jobs of one key start in the order in which they were accepted."""
    events = evidence.events.get("keyed", [])
    odd = {e.job for e in events if e.kind in (Kind.CHANGED, Kind.RERUN)}
    odd |= {e.job for e in events if e.kind is Kind.ACCEPTED and e.state is not State.WAITING}
    odd |= {action.id for action in evidence.scenario.actions if action.options}
    accepted: dict[str | None, list[tuple[str, int]]] = defaultdict(list)  # with its life
    started: dict[str | None, list[tuple[str, int]]] = defaultdict(list)
    for event in events:
        if event.job in odd:
            continue
        if event.kind is Kind.ACCEPTED:
            accepted[event.key].append((event.job, event.life))
        elif event.kind is Kind.STARTED and event.attempt == 1:
            started[event.key].append((event.job, event.life))
    for key, jobs in started.items():
        expected = [job for job in accepted[key] if job in set(jobs)]
        if jobs != expected:
            yield f"key {key}: started {jobs}, accepted {expected}"


def limits_kept(evidence: Evidence) -> Iterator[str]:
    """By the log, no more jobs are active than a limit allows."""
    shape = evidence.scenario.shape
    for queue, limit in (("narrow", shape.limit), ("keyed", shape.key_limit)):
        active: dict[str | None, set[str]] = defaultdict(set)
        for event in evidence.events.get(queue, []):
            group = active[event.key if queue == "keyed" else None]
            if event.kind is Kind.STARTED:
                group.add(event.job)
                if len(group) > limit:
                    yield f"{sorted(group)} of {queue} are active, and the limit is {limit}"
            elif event.previous is State.ACTIVE:
                group.discard(event.job)
    yield from _rate_kept(evidence)


def _rate_kept(evidence: Evidence) -> Iterator[str]:
    rate = evidence.scenario.shape.rate
    if rate is None or any(isinstance(fault, Jump) for fault in evidence.scenario.faults):
        return
    most, per = 2 * rate[0], int(rate[1] * 1000)  # windows are fixed: two may meet
    starts = [e.at_ms for e in evidence.events.get("narrow", []) if e.kind is Kind.STARTED]
    for first, last in zip(starts, starts[most:], strict=False):
        if last - first < per:
            yield f"{most + 1} jobs of narrow started within {last - first} ms"


def unique_alone(evidence: Evidence) -> Iterator[str]:
    """While a unique job has not ended, no other one is accepted."""
    records = evidence.records.get("plain", {})
    open: dict[object, str] = {}
    for event in evidence.events.get("plain", []):
        record = records.get(event.job)
        if event.name != "index" or record is None:
            continue
        document = msgspec.json.decode(record.payload)[0][0]
        if event.kind is Kind.ACCEPTED:
            if document in open:
                yield f"{event.job} was accepted while {open[document]} had the unique lock"
            open[document] = event.job
        elif event.state in ENDED and open.get(document) == event.job:
            del open[document]


# ── flows, schedules, steps ───────────────────────────────────────────────────────────────────────


def flows_whole(evidence: Evidence) -> Iterator[str]:
    """All members of a flow exist, and the last one runs when the others have completed."""
    events = evidence.events.get("plain", [])
    records = evidence.records.get("plain", {})
    touched = {action.id for action in evidence.scenario.actions}
    for flow, members in evidence.ledger.flows.items():
        *parts, last = members
        accepted = {e.job for e in events if e.kind is Kind.ACCEPTED and e.job in members}
        if accepted != set(members):
            yield f"flow {flow} lacks {sorted(set(members) - accepted)}"
        completed: set[str] = set()
        for event in events:
            if event.kind is Kind.COMPLETED:
                completed.add(event.job)
            elif event.kind is Kind.STARTED and event.job == last and set(parts) - completed:
                yield f"{last} of flow {flow} started before {sorted(set(parts) - completed)}"
        values = evidence.ledger.inputs.get(last)
        if values is not None and not touched & set(members):
            results = [msgspec.json.decode(records[part].result or b"null") for part in parts]
            if values != results:
                yield f"{last} was called with {values}, and its members returned {results}"


def fires_once(evidence: Evidence) -> Iterator[str]:
    """Each time of a schedule makes one job."""
    accepted = Counter(
        event.job.partition("@")[0]
        for event in evidence.events.get("plain", [])
        if event.kind is Kind.ACCEPTED and "@" in event.job
    )
    for id, times in evidence.ledger.schedules.items():
        if accepted[id] != times:
            yield f"schedule {id} made {accepted[id]} jobs instead of {times}"


def steps_once(evidence: Evidence) -> Iterator[str]:
    """A step that is recorded is not called again in this life of its job."""
    for call in evidence.ledger.steps:
        found = evidence.ledger.confirmed.get((call.job, call.life, call.step))
        if found is not None and call.at > found[1] and call.attempt > found[0]:
            yield f"step {call.step} of {call.job} was called again in attempt {call.attempt}"


def dead_letters(evidence: Evidence) -> Iterator[str]:
    """Each failure of a job makes one dead letter."""
    if evidence.scenario.shape.dead_letters:
        failed = sum(e.kind is Kind.FAILED for e in evidence.events.get("plain", []))
        copies = sum(e.kind is Kind.ACCEPTED for e in evidence.events.get("dead", []))
        if failed != copies:
            yield f"{failed} jobs failed, and there are {copies} dead letters"


def exchanges_follow_the_model(evidence: Evidence) -> Iterator[str]:
    """The store grants, renews and ends leases as the model of the protocol does."""
    jumps = any(isinstance(fault, Jump) for fault in evidence.scenario.faults)
    operated = frozenset(a.id for a in evidence.scenario.actions if a.what in OPERATED)
    yield from replay(evidence.exchanged, free=operated, timed=not jumps)


OPERATED = frozenset({"cancel", "remove", "rerun"})
"""Operations that may end a job while a worker runs it."""


def shipped_whole(evidence: Evidence) -> Iterator[str]:
    """Relays ship every event, in order, at least once, and a mark only after its events."""
    if not evidence.scenario.relays:
        return
    by_queue: dict[str, list[EventRecord]] = defaultdict(list)
    for event in evidence.shipped.events:
        by_queue[event.queue.queue].append(event)
    for queue, log in evidence.events.items():
        first_times = list({event.id: event.number for event in by_queue[queue]}.values())
        if first_times != sorted(first_times):
            yield f"the events of {queue} were shipped out of order"
        if missing := {event.number for event in log} - set(first_times):
            yield f"events {sorted(missing)[:5]} of {queue} were not shipped"
    for before, mark in evidence.shipped.marks:
        queue = mark.queue.queue
        done = {e.number for e in evidence.shipped.events[:before] if e.queue.queue == queue}
        if not set(range(1, mark.number + 1)) <= done:
            yield f"mark {mark.number} of {queue} was written before its events"
