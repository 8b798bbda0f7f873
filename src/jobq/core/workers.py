"""What the store knows of workers: who they are, and what an operator asks of them."""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from jobq.core.records import QueueName


class WorkerRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A worker as it last said it was."""

    name: str
    host: str
    pid: int
    queues: tuple[QueueName, ...]
    concurrency: int
    active: int = 0
    paused: bool = False  # by its own program
    draining: bool = False  # by an operator: it finishes what it runs, claims nothing, and stays
    started_ms: int = 0
    seen_ms: int = 0
    incarnation: str = ""  # tells two workers of one name apart


WorkerRequest = Literal["drain", "resume", "shutdown", "shutdown-now"]
"""What an operator may ask of a worker, which hears of it in its next beat. `drain`: claim nothing more, until `resume`.
`shutdown`: finish what runs, then stop. `shutdown-now`: release what runs, then stop."""


class Beat(NamedTuple):
    """The answer to a worker's beat: what an operator last asked of it, about how many workers the store has, and whether
    the name is another worker's (`displaced`)."""

    request: WorkerRequest | None
    workers: int
    displaced: bool = False
