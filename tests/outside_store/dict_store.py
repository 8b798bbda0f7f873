"""The smallest store: jobs in a dict.

It has the role `jobs` and no other, and lives outside of jobq.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import count
from types import TracebackType
from typing import Self

from msgspec.structs import replace

from jobq.core.records.jobs import (
    AnyOutcome,
    Claim,
    Complete,
    Fail,
    JobKey,
    JobRecord,
    JobSpec,
    Lease,
    LeaseRef,
    PutResult,
    QueueName,
    Release,
    RetryLater,
    Settled,
    lane_of,
)
from jobq.core.records.states import State
from jobq.core.rules.new_jobs import check_specs
from jobq.errors import InvalidJob


class Place:
    """What all handles on one URL share."""

    def __init__(self) -> None:
        self.jobs: dict[JobKey, JobRecord] = {}
        self.waiting: dict[QueueName, deque[JobKey]] = {}
        self.tokens: dict[str, JobKey] = {}  # of the leases that are held
        self.calls: dict[
            tuple[str, int], tuple[str, Settled]
        ] = {}  # the last of each worker and lane
        self.numbers = count(1)


PLACES: dict[str, Place] = {}


class DictStore:
    """A handle. Its calls wait for nothing, so each is whole."""

    roles = ("jobs",)

    def __init__(self, url: str, clock: Callable[[], int] | None) -> None:
        self.url = url
        self._now = clock or (lambda: time.time_ns() // 1_000_000)
        self._place = PLACES.setdefault(url, Place())

    async def migrate(self) -> None:
        """There is nothing to connect to."""

    async def aclose(self) -> None:
        """There is nothing to give back."""

    async def __aenter__(self) -> Self:
        await self.migrate()
        return self

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        await self.aclose()

    async def put(
        self, specs: Sequence[JobSpec], *, flow: str | None = None, last: bool = True
    ) -> list[PutResult]:
        """Accept jobs; an id that is stored already is a duplicate."""
        for spec in (specs := check_specs(specs)):
            if (
                flow
                or spec.after
                or spec.unique
                or spec.key
                or spec.delay_ms
                or spec.at_ms
                or spec.priority
            ):
                raise InvalidJob(f"job {spec.id!r}: a dict store keeps plain jobs only")
        return [self._put(spec) for spec in specs]

    def _put(self, spec: JobSpec) -> PutResult:
        key = JobKey(spec.queue, spec.id)
        found = self._place.jobs.get(key)
        if found is not None:
            return PutResult(
                id=spec.id, life=found.life, state=found.state, duplicate=True, found=found
            )
        self._place.jobs[key] = JobRecord(
            queue=spec.queue,
            id=spec.id,
            name=spec.name,
            state=State.WAITING,
            payload=spec.payload,
            codec=spec.codec,
            created_ms=self._now(),
            due_ms=self._now(),
        )
        self._place.waiting.setdefault(spec.queue, deque()).append(key)
        return PutResult(id=spec.id, life=0, state=State.WAITING)

    async def settle(
        self, outcomes: Sequence[AnyOutcome], *, worker: str, call: str, then: Claim | None = None
    ) -> Settled:
        """End runs, then claim more. A repeated call answers as the first time."""
        lane = (worker, lane_of(call))
        last_call, answer = self._place.calls.get(lane, ("", Settled()))
        if last_call != call:
            stale = tuple(LeaseRef(o.queue, o.id, o.token) for o in outcomes if not self._end(o))
            answer = Settled(stale=stale, leases=tuple(self._claim(then, worker)) if then else ())
            self._place.calls[lane] = (call, answer)
        return answer

    def _end(self, outcome: AnyOutcome) -> bool:
        """Whether the lease was held, so that the outcome applied."""
        key = JobKey(outcome.queue, outcome.id)
        if self._place.tokens.get(outcome.token) != key:
            return False
        job, line = self._place.jobs[key], self._place.waiting[outcome.queue]
        match outcome:
            case Complete(result=result):
                job = replace(job, state=State.COMPLETED, result=result, finished_ms=self._now())
            case Fail(failure=failure):
                job = replace(
                    job,
                    state=State.FAILED,
                    failure=failure,
                    failures=job.failures + 1,
                    finished_ms=self._now(),
                )
            case RetryLater(failure=failure):
                job = replace(job, state=State.WAITING, failure=failure, failures=job.failures + 1)
                line.append(key)
            case Release():
                job = replace(job, state=State.WAITING)
                line.appendleft(key)
            case _:
                raise InvalidJob(
                    f"job {outcome.id!r}: a dict store does not know the outcome "
                    f"{type(outcome).__name__}"
                )
        del self._place.tokens[outcome.token]
        self._place.jobs[key] = job
        return True

    def _claim(self, claim: Claim, worker: str) -> list[Lease]:
        lines = [self._place.waiting.get(queue, deque[JobKey]()) for queue in claim.queues]
        ready = (line.popleft() for line in lines for _ in range(len(line)))
        return [
            self._start(key, worker, claim.lease_ms)
            for _, key in zip(range(claim.limit), ready, strict=False)
        ]

    def _start(self, key: JobKey, worker: str, lease_ms: int) -> Lease:
        now, token = self._now(), f"t{next(self._place.numbers)}"
        found = self._place.jobs[key]
        job = replace(
            found, state=State.ACTIVE, attempt=found.attempt + 1, started_ms=now, worker=worker
        )
        self._place.jobs[key], self._place.tokens[token] = job, key
        return Lease(
            queue=job.queue,
            id=job.id,
            token=token,
            life=job.life,
            name=job.name,
            payload=job.payload,
            codec=job.codec,
            attempt=job.attempt,
            failures=job.failures,
            stalls=job.stalls,
            created_ms=job.created_ms,
            started_ms=now,
            expires_ms=now + lease_ms,
        )

    async def get(self, jobs: Sequence[JobKey]) -> list[JobRecord | None]:
        """The jobs as they are now."""
        return [self._place.jobs.get(key) for key in jobs]


def open(url: str, clock: Callable[[], int] | None = None) -> DictStore:
    """What the entry point names: from a URL to a handle, not yet connected."""
    return DictStore(url, clock)
