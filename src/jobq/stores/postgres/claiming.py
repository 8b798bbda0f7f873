"""The claim of an exchange on plain queues (fast.py): its statement, its leases, and its floors."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from jobq.core.records import Claim, Lease
from jobq.stores.postgres import waking
from jobq.stores.postgres.clock import elapsed
from jobq.stores.postgres.floors import as_columns
from jobq.stores.postgres.link import Link, Reply
from jobq.stores.postgres.memory import Plain, PostgresMemory
from jobq.stores.postgres.queries import FAST, FAST_WITH_FLOORS, FLOORS
from jobq.stores.relational.claim import REMEMBERED, lease_of, queue_order
from jobq.stores.relational.codes import ENDING, WATCHED
from jobq.stores.relational.memory import Granted
from jobq.stores.relational.rows import ClaimedJob, read_all
from jobq.stores.relational.tokens import caller_of, token_of, token_suffix

_STATEMENTS_WITH_FLOORS = (
    *(FAST_WITH_FLOORS[name] for name in ("exchange", "next_times")),
    waking.SQL_WITH_FLOORS["wake"],
    FLOORS["last_seq"],
)
"""What an exchange with floors needs besides those of fast.py."""


class ExchangedJob(ClaimedJob, array_like=True, gc=False):
    """A row that `exchange` returns."""

    qid: int
    server_ms: int
    began_ms: int
    watched: list[int] | None  # completed jobs whose end has listeners


class Call(NamedTuple):
    """What all calls of a handle need."""

    link: Link
    now: int
    ahead: int
    memory: PostgresMemory


class Ends(NamedTuple):
    """The completed jobs of an exchange, as the statement takes them."""

    columns: tuple[Sequence[Any], ...]
    entries: tuple[Sequence[Any], ...]
    happened: list[waking.Happened]


NO_ENDS = Ends(((), (), (), ()), ((), (), (), ()), [])


class Claiming:
    """The claim of an exchange."""

    def __init__(
        self, call: Call, worker: str, name: str, queues: list[Plain], wanted: Claim | None
    ) -> None:
        self.call, self.worker, self.name, self.queues = call, worker, name, queues
        self.limit = 0 if wanted is None else wanted.limit
        self.lease_ms = 0 if wanted is None else wanted.lease_ms
        self.suffix = token_suffix(worker, name)
        self.caller = caller_of(worker, name)
        self.qids = [queue.qid for queue in queues]
        self.floors = call.memory.floors
        self.uses_floors = self.floors.active
        self.sql = FAST_WITH_FLOORS if self.uses_floors else FAST
        self.ranges = self.floors.ranges(self.qids) if self.uses_floors else None
        self._began = 0.0
        self._sent = 0.0
        self._last_seq: Reply | None = None
        if self.uses_floors:
            call.link.prepare(*_STATEMENTS_WITH_FLOORS)

    def execute(self, ends: Ends, *, again: bool) -> Reply:
        """Queue the statement. `again`: the call has looked before."""
        link = self.call.link
        self._sent = elapsed()
        parameters = (
            self.qids, *ends.columns, self.call.now, self.limit, self.suffix, self.worker,
            self.lease_ms, self.caller, self.name, *ends.entries, again,
        )  # fmt: skip
        if self.ranges is None:
            return link.execute(FAST["exchange"], parameters)
        self._began = time.monotonic()
        self._last_seq = link.execute(FLOORS["last_seq"])
        since = [self.floors.due(qid) for qid in self.qids]
        return link.execute(
            FAST_WITH_FLOORS["exchange"], (*parameters, since, *as_columns(self.ranges))
        )

    def _learn(self, found: dict[int, list[ExchangedJob]]) -> None:
        """The statement has succeeded: remember where nothing is left."""
        row = None if self._last_seq is None else self._last_seq.fetchone()
        if row is None or row[0] is None:
            return
        ended = time.monotonic()
        left = self.limit
        for qid in self.qids:
            self.floors.nothing_due(qid, self.call.now, self._began, ended)
            jobs = [(job.priority, job.seq) for job in found.get(qid, ())]
            left -= len(jobs)
            if self.limit and (left or jobs):
                self.floors.claimed(
                    qid, jobs, full=not left, next_seq=row[0], began=self._began, ended=ended
                )

    def registered(self, seconds: float) -> bool:
        """Whether the worker is registered as a sleeper that stays, for at most so long."""
        found = self.call.memory.registered.get(self.worker)
        return (
            found is not None
            and self.uses_floors
            and found.qids >= set(self.qids)
            and time.monotonic() - found.at < seconds
        )

    def sleeper(self, mailbox: str) -> tuple[Any, ...]:
        """The parameters that register the worker as asleep."""
        return self.qids, self.worker, mailbox, self.limit, self.call.now, self.uses_floors

    def work(self) -> list[waking.Work]:
        """The queues in which more jobs may wait than this worker has room for."""
        return [waking.Work(q.qid, q.name, 1, more=True) for q in self.queues if self.limit]

    def leases(self, reply: Any) -> tuple[list[Lease], list[int] | None]:
        """The leases that the statement has granted, in the order of the queues.

        Also the numbers of completed jobs whose end has listeners."""
        rows = reply.fetchall()
        first_job, *_, server_ms, started, watched = rows[0]  # the last three: equal in all rows
        self.call.memory.time_of_reply(server_ms, self._sent)
        jobs = [] if first_job is None else read_all(rows, ExchangedJob)
        found: dict[int, list[ExchangedJob]] = {}
        for job in jobs:
            found.setdefault(job.qid, []).append(job)
        leases: list[Lease] = []
        expires = started + self.lease_ms
        granted = self.call.memory.granted
        if len(granted) > REMEMBERED:
            granted.clear()
        for line in found.values():
            line.sort(key=queue_order)
        self._learn(found)
        for queue in self.queues:
            for job in found.get(queue.qid, ()):
                token = token_of(job, self.suffix)
                if not job.flags & ENDING & ~WATCHED:
                    granted[token] = Granted(
                        queue.qid, job.pk, job.id, job.life, job.name, None, job.attempt,
                        job.failures, job.stalls, job.created_ms, job.due_ms, started, None,
                        bool(job.flags & WATCHED),
                    )  # fmt: skip
                leases.append(lease_of(queue.name, job, token, started, expires))
        return leases, watched

    def next_due(self) -> int | None:
        """Milliseconds until a job of the queues may become claimable by the clock; None: never."""
        return self.until(
            self.call.link.execute(self.sql["next_times"], (self.qids, self.call.now))
        )

    def until(self, times: Any) -> int | None:
        """The same, of the reply."""
        row = times.fetchone()
        return None if row is None or row[0] is None else max(0, row[0] - self.call.now)
