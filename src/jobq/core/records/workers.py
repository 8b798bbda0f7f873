"""What the store knows of workers: who they are, and what an operator asks of them."""

from __future__ import annotations

from typing import Literal, NamedTuple, NewType

import msgspec

from jobq.core.records.jobs import QueueName


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as it described itself in its last beat."""

    name: str
    host: str
    pid: int
    queues: tuple[QueueName, ...]
    concurrency: int
    active: int = 0
    paused: bool = False  # by the program that runs it
    draining: bool = False  # by an operator: it finishes running jobs and claims no more
    started_ms: int = 0
    seen_ms: int = 0
    incarnation: str = ""  # distinguishes two workers of one name


ConcurrencyRequest = NewType("ConcurrencyRequest", str)
"""`concurrency=20`: run up to 20 jobs at once from now on."""

WorkerRequest = Literal["drain", "resume", "shutdown", "shutdown-now"] | ConcurrencyRequest
"""What an operator may ask of a worker. The worker receives it in its next beat.

`drain`: claim no more jobs, until `resume`. `shutdown`: finish running jobs, then stop.
`shutdown-now`: release running jobs, then stop. A request replaces an earlier one that the worker
has not received.
"""

MAX_CONCURRENCY = 100_000
"""Jobs that one worker may run at once. More is a typing error, not a wish."""

_CONCURRENCY = "concurrency="


def concurrency_request(concurrency: int) -> ConcurrencyRequest:
    """The request to run up to `concurrency` jobs at once."""
    return ConcurrencyRequest(f"{_CONCURRENCY}{concurrency}")


def asked_concurrency(request: str) -> int | None:
    """The concurrency that a request asks for. None if it asks for something else."""
    number = request.removeprefix(_CONCURRENCY)
    if number == request or not (number.isascii() and number.isdigit()):
        return None
    return int(number) if 1 <= int(number) <= MAX_CONCURRENCY else None


class Beat(NamedTuple):
    """The reply to a worker's beat.

    `request` is what an operator last asked of the worker, and `workers` is about how many workers
    the store has. `displaced` means that another worker has this name.
    """

    request: WorkerRequest | None
    workers: int
    displaced: bool = False
