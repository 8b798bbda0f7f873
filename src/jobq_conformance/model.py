"""A small model of a plain queue: what a store must show after any history.

It has only the rules, no storage.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count

from jobq.core.records.jobs import (
    AnyOutcome,
    Block,
    Complete,
    Fail,
    Hold,
    Release,
    RetryLater,
    SnoozeFor,
)
from jobq.core.records.states import ENDED, PENDING, State
from jobq.core.rules.outcomes import is_last_chance

# Odd numbers of milliseconds, where everything else is a multiple of ten: no history ever meets
# these to the millisecond.
RETENTION = 50_003
TTL = 7_003
LEASES = (4_007, 30_009)

Place = tuple[int, int]
"""A place in the order of waiting jobs.

Jobs that one pass promotes with the same due time share a place: any order among them is right.
"""


@dataclass
class ModelRun:
    """A lease as the model sees it."""

    worker: str
    expires_ms: int


@dataclass
class ModelJob:
    """One id, through all its lives."""

    id: str
    state: State
    created_ms: int
    due_ms: int
    place: Place
    priority: int = 0
    life: int = 0
    attempt: int = 0
    failures: int = 0
    stalls: int = 0
    max_stalls: int = 3
    ttl_ms: int | None = None
    asked: bool = False
    finished_ms: int | None = None
    token: str | None = None
    run: ModelRun | None = None
    steps: dict[str, bytes] = field(default_factory=dict)  # of this life

    def end(self, state: State, now_ms: int) -> None:
        """End the job in this state."""
        self.state, self.finished_ms = state, now_ms
        self.leave()

    def leave(self) -> None:
        """End the run."""
        self.token = self.run = None

    @property
    def last_chance(self) -> bool:
        """Whether its next stall fails the job, so that it is claimed alone."""
        return is_last_chance(self.stalls, self.max_stalls)

    def past_ttl(self, now_ms: int) -> bool:
        """Whether its ttl has passed before its first start."""
        return (
            self.state is State.WAITING
            and self.ttl_ms is not None
            and self.attempt == 0
            and now_ms > self.due_ms + self.ttl_ms
        )

    def gone(self, now_ms: int) -> bool:
        """Whether its retention has passed."""
        return self.finished_ms is not None and now_ms > self.finished_ms + RETENTION


@dataclass
class Model:
    """The queue."""

    jobs: dict[str, ModelJob] = field(default_factory=dict)
    paused: bool = False
    _places: count[int] = field(default_factory=lambda: count(1))

    def back(self) -> Place:
        """The place behind all jobs."""
        return (next(self._places), 0)

    def alive(self, id: str, now_ms: int) -> ModelJob | None:
        """The job, if its record exists."""
        job = self.jobs.get(id)
        return None if job is None or job.gone(now_ms) else job

    def put(
        self,
        id: str,
        now_ms: int,
        *,
        delay_ms: int,
        priority: int,
        ttl_ms: int | None,
        max_stalls: int,
    ) -> bool:
        """Accept a job; False for a duplicate."""
        old = self.alive(id, now_ms)
        if old is not None and old.state is not State.CANCELLED:
            return False
        self.jobs[id] = ModelJob(
            id=id,
            state=State.DELAYED if delay_ms else State.WAITING,
            created_ms=now_ms,
            due_ms=now_ms + delay_ms,
            place=self.back(),
            priority=priority,
            life=0 if old is None else old.life + 1,
            ttl_ms=ttl_ms,
            max_stalls=max_stalls,
        )
        return True

    def settle(self, outcome: AnyOutcome, now_ms: int) -> bool:
        """Apply an outcome; False if its token is stale."""
        job = self.jobs.get(outcome.id)
        if job is None or job.token != outcome.token:
            return False
        if isinstance(outcome, Complete):
            job.end(State.COMPLETED, now_ms)
        elif job.asked:
            job.end(State.CANCELLED, now_ms)
        else:
            self._go_on(job, outcome, now_ms)
        return True

    def _go_on(self, job: ModelJob, outcome: AnyOutcome, now_ms: int) -> None:
        match outcome:
            case Fail():
                job.failures += 1
                job.end(State.FAILED, now_ms)
            case RetryLater(delay_ms=delay):
                job.failures += 1
                self._later(job, delay, now_ms)
            case SnoozeFor(delay_ms=delay):
                self._later(job, delay, now_ms)
            case Release():
                job.state = State.WAITING
                job.leave()
            case Hold() | Block() | Complete():
                raise AssertionError("not in this model")

    def _later(self, job: ModelJob, delay_ms: int, now_ms: int) -> None:
        job.state, job.due_ms, job.place = (
            (State.DELAYED if delay_ms else State.WAITING),
            now_ms + delay_ms,
            self.back(),
        )
        job.leave()

    def repair(self, now_ms: int) -> None:
        """What a claim or a tick does first: expired leases return to their places, due jobs go to
        the back.
        """
        for job in self.jobs.values():
            if job.run is not None and job.run.expires_ms < now_ms:
                self._stall(job, now_ms)
        due = sorted(
            {
                j.due_ms
                for j in self.jobs.values()
                if j.state is State.DELAYED and j.due_ms <= now_ms
            }
        )
        batch = next(self._places)
        for rank, moment in enumerate(due):
            for job in self.jobs.values():
                if job.state is State.DELAYED and job.due_ms == moment:
                    job.state, job.place = State.WAITING, (batch, rank)

    def _stall(self, job: ModelJob, now_ms: int) -> None:
        job.stalls += not job.asked
        if job.asked:
            job.end(State.CANCELLED, now_ms)
        elif job.stalls > job.max_stalls:
            job.end(State.FAILED, now_ms)
        else:
            job.state = State.WAITING
            job.leave()

    def expire(self, now_ms: int) -> None:
        """What a tick also does: jobs past their ttl fail."""
        for job in self.jobs.values():
            if job.past_ttl(now_ms):
                job.end(State.FAILED, now_ms)

    def claimable(self, now_ms: int) -> list[ModelJob]:
        """The waiting jobs, the next one first."""
        if self.paused:
            return []
        waiting = [
            j for j in self.jobs.values() if j.state is State.WAITING and not j.past_ttl(now_ms)
        ]
        return sorted(waiting, key=lambda j: (-j.priority, j.place))

    def held_back(self, now_ms: int) -> bool:
        """Whether the next job, or one that shares its place, is on its last chance.

        A claim ends before such a job.
        """
        waiting = self.claimable(now_ms)
        return any(
            j.last_chance
            for j in waiting
            if (j.priority, j.place) == (waiting[0].priority, waiting[0].place)
        )

    def start(self, job: ModelJob, token: str, worker: str, expires_ms: int) -> None:
        """Start a claimed job."""
        job.state, job.token, job.run = State.ACTIVE, token, ModelRun(worker, expires_ms)
        job.attempt += 1

    # ── commands ──────────────────────────────────────────────────────────────────────────────────

    def cancel(self, id: str, now_ms: int) -> bool:
        job = self.alive(id, now_ms)
        if job is None or job.state in ENDED:
            return False
        if job.state is State.ACTIVE:
            job.asked = True
        else:
            job.end(State.CANCELLED, now_ms)
        return True

    def remove(self, id: str, now_ms: int) -> bool:
        job = self.alive(id, now_ms)
        if job is None or job.state is State.ACTIVE:
            return False
        if job.state in ENDED:
            self.forget(id)
        else:
            job.end(State.CANCELLED, now_ms)
        return True

    def forget(self, id: str) -> None:
        """Drop the record of a job."""
        del self.jobs[id]

    def rerun(self, id: str, now_ms: int) -> bool:
        job = self.alive(id, now_ms)
        if job is None or job.state not in ENDED:
            return False
        job.state, job.place, job.due_ms, job.finished_ms, job.asked = (
            State.WAITING,
            self.back(),
            now_ms,
            None,
            False,
        )
        job.life, job.failures, job.stalls, job.ttl_ms = job.life + 1, 0, 0, None
        job.steps = {}
        return True

    def promote(self, id: str, now_ms: int) -> bool:
        job = self.alive(id, now_ms)
        if job is None or job.state is not State.DELAYED:
            return False
        job.state, job.place, job.due_ms = State.WAITING, self.back(), now_ms
        return True

    def reprioritise(self, id: str, priority: int, now_ms: int) -> bool:
        job = self.alive(id, now_ms)
        if job is None or job.state not in PENDING or job.attempt:  # it has started
            return False
        job.priority, job.place = priority, self.back()
        return True
