"""The states of the model: jobs, workers, and the messages between workers and the store."""

from __future__ import annotations

from typing import NamedTuple

from jobq.core.records.states import State

WAITING, ACTIVE, COMPLETED = State.WAITING, State.ACTIVE, State.COMPLETED


class Token(NamedTuple):
    """Proves a lease. Real tokens have the same parts, and the job's number and life."""

    worker: int
    life: int
    call: int
    attempt: int


class Job(NamedTuple):
    """A job in the store."""

    state: State = WAITING
    attempt: int = 0
    token: Token | None = None


class Run(NamedTuple):
    """A lease that a worker works on. `end`: None while its handler runs."""

    job: int
    attempt: int
    token: Token
    end: str | None = None  # complete or retry


class Call(NamedTuple):
    """An exchange on its way to the store: `settle(outcomes, then=Claim(limit))`."""

    worker: int
    life: int
    number: int
    ended: frozenset[Run]
    limit: int


class Reply(NamedTuple):
    """The reply to an exchange on its way to the worker."""

    worker: int
    life: int
    number: int
    stale: frozenset[tuple[int, Token]]
    leases: frozenset[Run]


Message = Call | Reply


class Worker(NamedTuple):
    """A worker process. `pending` is its exchange without a reply."""

    life: int = 0
    calls: int = 0
    pending: Call | None = None
    runs: frozenset[Run] = frozenset()


class Remembered(NamedTuple):
    """The last exchange of a worker, as the store remembers it."""

    life: int
    number: int
    stale: frozenset[tuple[int, Token]]


class Budget(NamedTuple):
    """How often each thing may still go wrong."""

    expiries: int
    losses: int
    repeats: int
    kills: int
    retries: int


ONE_EACH = Budget(expiries=1, losses=1, repeats=1, kills=1, retries=1)


class World(NamedTuple):
    """A state of the whole model. The last three fields are history, for the invariants."""

    jobs: tuple[Job, ...]
    workers: tuple[Worker, ...]
    last: tuple[Remembered | None, ...]
    net: frozenset[Message]
    budget: Budget
    started: frozenset[tuple[int, int]] = frozenset()  # job and attempt: its handler was called
    returned: frozenset[tuple[int, int]] = frozenset()
    broken: str | None = None
