"""Judges a run from its facts: is an acknowledged job lost, is a repeated run unexplained?

The judge believes neither the store nor the ledger alone. A job has to be in the store because a
producer wrote down that it was acknowledged. A completed job must have run because a handler wrote
that down. A handler that ran must have been claimed because the event log says so. Every run after
a job's first needs an event that returned the job to its queue.

In a durability class that may lose writes, a power cut or a failover has a window: the store may
have forgotten what it acknowledged in it, and nothing before it.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from typing import Literal, NamedTuple

from jobq.core.records.states import Kind, State, legal
from tests.faults.ledger.facts import Event, Run, Story

RETURNS = frozenset({"stalled", "retried", "released", "snoozed", "limited"})
"""Events after which another run of the job is expected."""
ENDS = frozenset({"completed", "failed", "cancelled"})
CLOCKS_MS = 50
"""Milliseconds by which the time of an event and that of a ledger line may differ: the wall clock
is adjusted while the monotonic one is not, and both are rounded."""
SHOWN = 20
"""Findings that are kept in words. All of them are counted."""

Rule = Literal[
    "lost", "unfinished", "unexplained repeat", "hidden run", "end without a run", "two ends",
    "wrong record", "illegal step", "time went back", "undone", "gap", "wrong count", "bad exit",
]  # fmt: skip


class Fault(NamedTuple):
    """Something that was done to a process, a server, a network, a disk or a clock.

    `forgets_ms` is the beginning of the time whose writes the store may have lost, in a durability
    class that allows it. `forks_ms` is the same for calls that were not acknowledged, but that the
    reader of the log has seen: on a primary whose replica did not have them yet.
    """

    kind: str
    at_ms: int
    until_ms: int
    who: str = ""
    forgets_ms: int | None = None
    forks_ms: int | None = None


class Finding(NamedTuple):
    """A broken promise."""

    rule: Rule
    job: int
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: job {self.job}: {self.text}"


@dataclass(slots=True)
class Verdict:
    """What the judge has found. The run is good if `findings` is empty."""

    jobs: int = 0
    acknowledged: int = 0
    runs: int = 0
    repeats: int = 0
    late: int = 0
    forgotten: int = 0
    """Acknowledged jobs that the store has lost, as its durability class allows."""
    stalls_without_fault: int = 0
    findings: Counter[Rule] = field(default_factory=Counter)
    examples: list[Finding] = field(default_factory=list)
    recovery_ms: list[int] = field(default_factory=list)
    states: Counter[str] = field(default_factory=Counter)

    def add(self, finding: Finding) -> None:
        """Count a finding."""
        self.findings[finding.rule] += 1
        if len(self.examples) < SHOWN:
            self.examples.append(finding)

    @property
    def lost(self) -> int:
        """Acknowledged jobs that are not in the store, or never ended."""
        return self.findings["lost"] + self.findings["unfinished"]

    @property
    def unexplained(self) -> int:
        """Runs that no event and no fault explains."""
        return self.findings["unexplained repeat"] + self.findings["hidden run"]


class Judge:
    """Judges jobs one after the other. Its memory grows with faults and repeats, not with jobs."""

    def __init__(
        self,
        faults: Sequence[Fault] = (),
        *,
        wall_ms: int = 0,
        clocks_jump: bool = False,
    ) -> None:
        """`wall_ms` is the wall clock's lead over the monotonic clock."""
        self._faults = sorted(faults, key=lambda fault: fault.at_ms)
        self._starts = [fault.at_ms for fault in self._faults]
        self._next_start: dict[int, int] = {}  # fault → when the next run started
        self._wall_ms = wall_ms
        self._clocks_jump = clocks_jump
        self._windows = [
            (fault.forgets_ms, fault.at_ms, fault.until_ms)
            for fault in self._faults
            if fault.forgets_ms is not None
        ]
        self._forks = self._windows + [
            (fault.forks_ms, fault.at_ms, fault.until_ms)
            for fault in self._faults
            if fault.forks_ms is not None
        ]
        self.verdict = Verdict()

    def judge(self, stories: Iterable[Story]) -> Verdict:
        """Judge all jobs."""
        verdict = self.verdict
        for story in stories:
            verdict.jobs += 1
            verdict.acknowledged += story.acked_ms is not None
            verdict.runs += len(story.runs)
            verdict.repeats += max(0, len(story.runs) - 1)
            verdict.late += story.late
            verdict.states[story.record.state if story.record else "unknown"] += 1
            for finding in self._findings(story):
                verdict.add(finding)
            self._measure(story)
        verdict.recovery_ms += [
            at_ms - self._faults[n].at_ms
            for n, at_ms in self._next_start.items()
            if "worker" not in self._faults[n].kind and "producer" not in self._faults[n].kind
        ]
        return verdict

    def check_counts(self, counts: dict[str, int]) -> None:
        """Compare the store's own counters with its records."""
        found = {state: n for state, n in self.verdict.states.items() if state != "unknown"}
        claimed = {state: n for state, n in counts.items() if n}
        if found != claimed:
            text = f"the store counts {claimed}, and has {found}"
            self.verdict.add(Finding("wrong count", 0, text))

    # ── rules ─────────────────────────────────────────────────────────────────────────────────────

    def _findings(self, story: Story) -> Iterator[Finding]:
        yield from self._check_stored(story)
        yield from self._check_steps(story)
        yield from self._check_runs(story)
        yield from self._check_ends(story)

    def _check_stored(self, story: Story) -> Iterator[Finding]:
        record = story.record
        last = story.events[-1] if story.events else None
        if record is None:
            if story.acked_ms is not None and not self._forgets(story.acked_ms):
                yield Finding("lost", story.job, f"acknowledged at {story.acked_ms} and gone")
            elif last is not None and last.kind != "gap":
                yield Finding("lost", story.job, f"{last.kind} by the log and gone")
            elif story.acked_ms is not None:
                self.verdict.forgotten += 1
            return
        if record.state not in ENDS:
            yield Finding("unfinished", story.job, f"{record.state} in the end")
        if last is None:
            yield Finding("wrong record", story.job, f"{record.state}, but the log has no event")
        elif (record.state, record.attempt, record.life) != (last.state, last.attempt, last.life):
            yield Finding(
                "wrong record",
                story.job,
                f"{record.state} at attempt {record.attempt}, but the last event is {last.kind} "
                f"at attempt {last.attempt}",
            )

    def _check_steps(self, story: Story) -> Iterator[Finding]:
        """Each event of the log continues from the state, attempt and life that the event before it
        left. An event that the store has lost is of a time that may be forgotten."""
        before: Event | None = None
        for event in story.events:
            if event.kind == "gap":
                yield Finding("gap", story.job, "events were dropped before they were read")
                continue
            previous = State(event.previous) if event.previous else None
            known = legal(Kind(event.kind), previous, State(event.state))
            if not known or (before is None and event.previous):
                yield Finding("illegal step", story.job, _step(before, event))
            elif before is not None and not _continues(before, event):
                two = before.state in ENDS and event.state in ENDS
                rule: Rule = "two ends" if two else "illegal step"
                yield Finding(rule, story.job, _step(before, event))
            if before is not None and event.at_ms < before.at_ms:
                text = f"{_step(before, event)}, {before.at_ms - event.at_ms} ms earlier"
                yield Finding("time went back", story.job, text)
            before = event
        if sum(event.state in ENDS for event in story.events) > 1:
            yield Finding("two ends", story.job, ", ".join(event.kind for event in story.events))
        for event in story.undone:
            if not self._may_be_undone(self._monotonic(event.at_ms)):
                text = f"{event.kind} at attempt {event.attempt} was in the log and is gone"
                yield Finding("undone", story.job, text)

    def _check_runs(self, story: Story) -> Iterator[Finding]:
        """The log has a claim for each run, and a return to the queue between two runs."""
        claims = {
            (event.life, event.attempt, event.worker)
            for event in chain(story.events, story.undone)
            if event.kind == "started"
        }
        returns = {
            (event.life, event.attempt)
            for event in chain(story.events, story.undone)
            if event.kind in RETURNS
        }
        for run in story.runs:
            claimed = (run.life, run.attempt, run.worker) in claims
            if not claimed and not self._forgets(run.at_ms):
                yield Finding("hidden run", story.job, f"the log has no claim for {_named(run)}")
        # A worker may start an attempt so late that the next one has started before it.
        by_attempt = sorted(story.runs, key=lambda run: (run.life, run.attempt, run.at_ms))
        unexplained = self._unexplained(story.runs, returns)
        if unexplained:
            unexplained = self._unexplained(by_attempt, returns)
        for run in unexplained:
            yield Finding("unexplained repeat", story.job, f"nothing explains {_named(run)}")

    def _unexplained(self, runs: Sequence[Run], returns: set[tuple[int, int]]) -> list[Run]:
        """The runs of a job that nothing explains, if they began in this order."""
        return [run for before, run in pairwise(runs) if not self._explained(before, run, returns)]

    def _check_ends(self, story: Story) -> Iterator[Finding]:
        ended = {
            (run.life, run.attempt, run.worker) for run in story.runs if run.ended_ms is not None
        }
        for event in chain(story.events, story.undone):
            if event.kind == "completed" and (event.life, event.attempt, event.worker) not in ended:
                yield Finding(
                    "end without a run",
                    story.job,
                    f"completed by attempt {event.attempt} on {event.worker}, which has not run",
                )

    def _explained(self, before: Run, run: Run, returns: set[tuple[int, int]]) -> bool:
        if (
            (before.life, before.attempt) < (run.life, run.attempt)
            and (before.life, before.attempt) in returns
            and (run.life, run.attempt - 1) in returns  # a claim whose run has never begun
        ):
            return True
        return any(
            begin <= (before.ended_ms or before.at_ms) and before.at_ms <= end and cut < run.at_ms
            for begin, cut, end in self._windows
        )

    # ── times ─────────────────────────────────────────────────────────────────────────────────────

    def _monotonic(self, wall_ms: int) -> int:
        return wall_ms - self._wall_ms

    def _forgets(self, at_ms: int) -> bool:
        """Whether the store may have lost what it acknowledged at this time."""
        return any(begin - CLOCKS_MS <= at_ms <= end + CLOCKS_MS for begin, _, end in self._windows)

    def _may_be_undone(self, at_ms: int) -> bool:
        """Whether an event of this time may have been read and lost."""
        return any(begin - CLOCKS_MS <= at_ms <= end + CLOCKS_MS for begin, _, end in self._forks)

    def _measure(self, story: Story) -> None:
        """Note how long after a fault runs began, and whether each stall has a fault."""
        stalled = [event for event in story.events if event.kind == "stalled"]
        claimed = {
            (event.life, event.attempt): event.at_ms
            for event in story.events
            if event.kind == "started"
        }
        for event in stalled if not self._clocks_jump else ():
            began = claimed.get((event.life, event.attempt), event.at_ms)
            if not self._fault_between(self._monotonic(began), self._monotonic(event.at_ms)):
                self.verdict.stalls_without_fault += 1
        broken = {(event.life, event.attempt) for event in stalled}
        for n, run in enumerate(story.runs):
            found = bisect.bisect_right(self._starts, run.at_ms) - 1
            if found >= 0:
                known = self._next_start.get(found)
                self._next_start[found] = run.at_ms if known is None else min(known, run.at_ms)
            if n and (story.runs[n - 1].life, story.runs[n - 1].attempt) in broken:
                first = bisect.bisect_left(self._starts, story.runs[n - 1].at_ms)
                if first < len(self._starts) and self._starts[first] <= run.at_ms:
                    self.verdict.recovery_ms.append(run.at_ms - self._starts[first])

    def _fault_between(self, begin_ms: int, end_ms: int) -> bool:
        return any(
            fault.at_ms <= end_ms and fault.until_ms >= begin_ms
            for fault in self._faults[: bisect.bisect_right(self._starts, end_ms)]
        )


def _continues(before: Event, event: Event) -> bool:
    """Whether an event begins where the one before it has ended."""
    if event.kind == "accepted":
        return False
    attempt = before.attempt + (event.kind == "started")
    return (event.previous, event.attempt, event.life) == (before.state, attempt, before.life)


def _named(run: Run) -> str:
    return f"attempt {run.attempt} on {run.worker} at {run.at_ms}"


def _step(before: Event | None, event: Event) -> str:
    first = f"{before.kind} at attempt {before.attempt}, then " if before else ""
    return f"{first}{event.kind} at attempt {event.attempt}: {event.previous} → {event.state}"


def percentile(values: Sequence[int], share: float) -> int:
    """The value that this share of the values does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0
