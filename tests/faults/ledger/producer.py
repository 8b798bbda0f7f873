"""A producer of a run: `python -m tests.faults.ledger.producer NAME FIRST LAST STEP EXECUTOR`.

It enqueues the jobs FIRST, FIRST + STEP, … before LAST, and writes down which were acknowledged. A
call that fails has an unknown outcome and is repeated under the same ids. If the producer is
killed, the next one of its name continues with what was not written down.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path

from jobq import Queue
from jobq.core.records.states import ENDED
from jobq.errors import StoreUnavailable
from tests.faults.ledger import facts
from tests.faults.ledger.journal import Journal
from tests.faults.ledger.queues import ledger_queue
from tests.waiting import takes

FOLDER = Path(os.environ.get("LEDGER_FOLDER", "."))
AHEAD = int(os.environ.get("LEDGER_AHEAD", "20000"))
"""Jobs that wait at the most: producers go on until the end of the run, so that they can be killed.
"""
BATCH = int(os.environ.get("LEDGER_BATCH", "50"))
"""Jobs of one call. A kill in the middle of a call leaves so many with an unknown outcome."""
EXECUTORS = {"mixed": ("inline", "thread", "process")}


def acknowledged(name: str) -> set[int]:
    """What earlier producers of this name have written down."""
    found: set[int] = set()
    for path in FOLDER.glob(f"acks-{name}-*.facts"):
        found |= {int(line[:8]) for line in path.read_text().splitlines(True) if line[-1] == "\n"}
    return found


def batches(numbers: Iterator[int]) -> Iterator[list[int]]:
    """The numbers in lists of one call each."""
    while batch := list(islice(numbers, BATCH)):
        yield batch


async def produce(name: str, numbers: range, executor: str) -> None:
    """Enqueue all jobs that are not acknowledged yet."""
    done = acknowledged(name)
    journal = Journal(FOLDER / f"acks-{name}-{os.getpid()}-{time.monotonic_ns()}.facts")
    kinds = cycle(EXECUTORS.get(executor, (executor,)))
    queue = await opened()
    try:
        room = 0
        for batch in batches(n for n in numbers if n not in done):
            if room <= 0:
                room = await room_of(queue)
            room -= len(batch)
            await enqueue(queue, batch, next(kinds))
            now = facts.now_ms()
            journal.write("".join(facts.acked(n, now) for n in batch))
    finally:
        await queue.aclose()


async def opened() -> Queue:
    """The queue, as soon as its store is available."""
    while True:
        queue = ledger_queue()
        try:
            await queue.__aenter__()
        except StoreUnavailable:
            await takes(0.2)
        else:
            return queue


async def room_of(queue: Queue) -> int:
    """How many jobs may be enqueued, as soon as workers are not far behind."""
    while True:
        try:
            counts = await queue.counts()
        except StoreUnavailable:
            await takes(0.1)
            continue
        room = AHEAD - sum(n for state, n in counts.items() if state not in ENDED)
        if room > 0:
            return room
        await takes(0.1)


async def enqueue(queue: Queue, batch: list[int], kind: str) -> None:
    """Enqueue a batch, again and again until it is acknowledged."""
    while True:
        try:
            await queue.enqueue_many(
                queue.task_by_name(kind, id=f"j{n:08}").bind(n=n) for n in batch
            )
        except StoreUnavailable:
            await takes(0.1)
        else:
            return


if __name__ == "__main__":
    _, name, first, last, step, executor = sys.argv
    asyncio.run(produce(name, range(int(first), int(last), int(step)), executor))
