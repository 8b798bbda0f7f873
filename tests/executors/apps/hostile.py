"""Tasks that misuse the line to their worker, in real child processes."""

from __future__ import annotations

import asyncio
import base64
import os
from pathlib import Path
from typing import Any

from jobq import Queue, Retry, current_job
from jobq.executors.pool.messages import NoteRequest, frame
from jobq.executors.running import running
from tests.fuzz.sequences import Fuzzer
from tests.waiting import blocks

queue = Queue("hostile", "memory://hostile")
large = Queue("large", "memory://hostile", max_payload=64 * 2**20)


@queue.task(executor="process")
def innocent(n: int) -> int:
    return n


@large.task(executor="process")
def takes_much(data: str) -> int:
    return len(data)


def _connection() -> int:
    """The descriptor of the line: nothing keeps a handler from finding it."""
    run: Any = running.get()
    return int(run._connection._socket.fileno())


@queue.task(executor="process", retry=Retry(0), timeout=10)
def writes(data: str) -> str:
    os.write(_connection(), base64.b64decode(data))
    return "as if nothing had happened"


@queue.task(executor="process", retry=Retry(0))
def truncates_and_dies() -> None:
    """The numbers that worker and child share are gone."""
    for fd in os.listdir("/proc/self/fd"):
        link = f"/proc/self/fd/{fd}"
        if os.path.islink(link) and "memfd:jobq" in os.readlink(link):
            os.ftruncate(int(fd), 0)
    os._exit(3)


@queue.task(executor="process", retry=Retry(0))
def leaves_a_flood(path: str) -> None:
    """A process that left the group sends messages without a pause, and its parent dies."""
    connection, note = _connection(), frame(NoteRequest(1, b"1")) * 1000
    if os.fork():
        while not Path(path).exists():
            blocks(0.01)
        os._exit(3)
    os.setsid()
    os.set_blocking(connection, True)
    Path(path).touch()
    try:
        while True:
            os.write(connection, note)
    finally:
        os._exit(0)  # when the worker has closed the line


@queue.task(executor="process", retry=Retry(0), timeout=0.5, grace=0.5)
def closes_the_line_and_waits() -> None:
    os.close(_connection())
    while True:
        try:
            blocks(60)
        except asyncio.CancelledError:
            pass


@queue.task(executor="process", retry=Retry(0))
async def asks_much_at_once(count: int) -> int:
    """More requests than may wait for replies. Some are cancelled: they still count."""
    job = current_job()
    cancelled = [asyncio.ensure_future(job.progress(n)) for n in range(count)]
    await asyncio.sleep(0)
    for each in cancelled[::2]:
        each.cancel()
    await asyncio.gather(*cancelled, return_exceptions=True)
    await asyncio.gather(*(job.log(f"line {n}") for n in range(count)))
    return count


@queue.task(executor="process", retry=Retry(0))
async def adds_a_child_that_is_too_large() -> str:
    try:
        await current_job().add(takes_much, "x" * 16 * 2**20)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


@queue.task(executor="process", retry=Retry(0), timeout=2, grace=0.5)
def sends_a_sequence(seed: int) -> str:
    """A mutated sequence, and then what every process sends when its job has ended."""
    run: Any = running.get()
    fuzzer, connection = Fuzzer(seed), _connection()
    fuzzer.tokens.append((run.lease.queue, "another", "token"))
    for piece in fuzzer.sequence(run._n, run.lease, "memory://hostile"):
        os.write(connection, piece)
    return "as if nothing had happened"
