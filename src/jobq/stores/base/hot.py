"""The calls that run for every job, and the signals that wake workers and callers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from jobq.core.records.jobs import (
    AnyOutcome,
    Claim,
    JobSpec,
    LeaseRef,
    LeaseState,
    Note,
    PutResult,
    QueueName,
    Settled,
    Signal,
    Topic,
)


class HotStore(Protocol):
    """The calls that run for every job."""

    async def put(
        self, specs: Sequence[JobSpec], *, flow: str | None = None, last: bool = True
    ) -> list[PutResult]:
        """Accept jobs. Results are in the order of the specs.

        A spec that `core.rules.new_jobs.check_specs` refuses is InvalidJob, and nothing of the
        call is stored. What that function returns is stored: plain values.

        If a record with the spec's id exists, the spec is a duplicate: nothing changes, and the
        result has the job that was found. An id is free again when its job was cancelled (the new
        job has life+1), when its retention has passed, or when its record was removed (the new job
        has life 0; see `core.rules.ended.next_life`). If the spec's unique lock is held, its mode
        decides (`core.rules.locks`).

        A spec with `after` is blocked until those jobs have ended; an id in `after` that does not
        exist is InvalidJob. A spec with a delay or a time is delayed. All others are waiting,
        behind the jobs of their priority, or in front of them with `lifo`.

        The first job of a queue without a mode sets it: keyed if the job has a key, else plain. A
        job of the other kind is then a ConfigError. A cost above the capacity of the bucket that
        would pay for it is InvalidJob.

        A queue with `max_waiting` refuses each new job beyond that number: the result has `full`
        set to the number and `state` None, and nothing of the job is stored. The other specs of the
        call are not affected, unless some of them wait for others: those are accepted together or
        refused together. `core.rules.limits` says which jobs count and which are never refused. A
        partition holds an equal share of the number, rounded up.

        With `flow`, the specs are staged under that id, and the call with `last` submits the flow.
        A call without specs is InvalidJob.

        - No job of a flow is visible before the flow is submitted. All of them are visible when
          that call returns, in every queue. If the caller dies meanwhile, ticks finish the work.
        - Submitting may take several steps. Each step is bounded, and no job starts before the jobs
          that wait for it are stored.
        - Submitting the same flow again changes nothing.
        - A flow that is never submitted is swept. Submitting it after that is InvalidJob.
        - Members count towards `max_waiting` from when they are staged. If those of one call do not
          all fit, it raises QueueFull. Any refused call discards the flow and frees its places, and
          so does the sweep.
        - If a call discards a flow that another caller of the handle has begun, the next call of
          that caller is InvalidJob: it would submit a part of the flow.
        """
        ...

    async def settle(
        self, outcomes: Sequence[AnyOutcome], *, worker: str, call: str, then: Claim | None = None
    ) -> Settled:
        """Apply the outcomes of runs, then claim more jobs. To run jobs, a worker needs only this.

        Outcomes: if a token is not the job's lease (any more), that outcome changes nothing and is
        listed in `stale`. If a cancel was requested, the job ends as completed if it completed, and
        as cancelled otherwise. The end of a job releases its unique lock and its slots, and
        unblocks the jobs that waited only for it.

        Claiming: the store first promotes due jobs and recovers expired leases of the claimed
        queues, a bounded number of each. Then it claims up to `then.limit` jobs: highest priority
        first, oldest first within a priority, as far as limits allow. In a keyed queue the keys
        take turns. A paused queue is promoted and recovered, but not claimed from. A job past its
        ttl fails as `expired` instead. A claimed job is active with attempt+1, under a token of
        this claim, until `lease_ms` from now.

        A job on its last chance (`core.rules.outcomes`) is claimed alone: it is the only lease of
        the reply, or the claim of its queue ends before it. Only a claim that is `alone` takes it,
        and only if it is the first job that can be claimed. Otherwise a job on its last chance at
        the head of a queue stays there, `Settled.last_chance` is True, the worker does not count as
        asleep, and sleeping workers are woken for the jobs left. A job that could not start anyway
        (queue paused, limit or rate used up, key busy) does not set `last_chance`.

        `call` names the exchange and is unique for the worker. Repeating a call changes nothing and
        returns the first reply again. A call belongs to a lane (`core.records.jobs.lane_of`). A
        worker has one exchange at a time in each lane, and the store remembers the last call of
        each.

        If the call settles nothing, finds nothing to claim and leaves no job on its last chance,
        `asleep` is True. New work then wakes the worker (see `sleep`) until its next exchange.
        """
        ...

    async def extend(self, leases: Sequence[LeaseRef], *, lease_ms: int) -> list[LeaseState]:
        """Renew leases until `lease_ms` from now. Results are in the order of the leases."""
        ...

    async def note(self, notes: Sequence[Note]) -> list[LeaseState]:
        """Store progress, log lines, checkpoints and steps of running jobs.

        Only the last progress is kept, and the last 1,000 log lines per job. A checkpoint or a step
        is as durable as an outcome that `settle` accepted. Returns the state of each lease, in
        order, and renews none. Nothing is stored for a lost lease, and nothing goes into the event
        log. Listeners to the topic `noted` of a job get a signal.

        A checkpoint never replaces one of the same lease with a higher `saved_number`, so a call
        that the network delivers late, or twice, takes nothing back.

        Each step is stored under its name. Other steps of the job stay as they are, and a step of
        the same name is replaced, so a call can be repeated. Leases and `get` return the steps of
        the job's life, ordered by name. They are kept until a rerun or until the job is removed. A
        step that `core.values.checks.check_steps` refuses is InvalidJob, and nothing of the call is
        stored.
        """
        ...


class SignalStore(Protocol):
    """Notifications. A signal can be lost, so every waiter also polls, slowly."""

    async def sleep(
        self, queues: Sequence[QueueName], *, worker: str, slots: int, timeout_ms: int
    ) -> bool:
        """Wait until one of the queues may have work (True) or the timeout has passed (False).

        Work that arrived since the worker's last empty exchange is not missed. n new waiting jobs
        wake workers with about n free slots in total, not all workers. If those workers do not
        claim, because they are frozen or dead, another one wakes within about a second.
        """
        ...

    def listen(self, topics: Sequence[Topic]) -> AbstractAsyncContextManager[AsyncIterator[Signal]]:
        """Signals for these topics, from when the context is entered.

        To miss nothing, enter the context, then read the state, then wait for signals.
        """
        ...
