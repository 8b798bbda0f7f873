"""Tasks for fault tests. Run as a program, it is a worker whose children never return."""

from __future__ import annotations

import asyncio
import importlib
import os
import sys
import time
from pathlib import Path

from jobq import Queue, Retry, Worker

queue = Queue("load", "memory://load")
busy_queue = Queue("busy", "memory://load")


@queue.task(executor="process", retry=Retry(20, base=0))
def count(n: int) -> int:
    return n


def _busy(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@busy_queue.task
def in_thread(seconds: float) -> None:
    _busy(seconds)


@busy_queue.task(executor="process")
def in_process(seconds: float) -> None:
    _busy(seconds)


BUSY = """
import sys, time
end = time.monotonic() + float(sys.argv[1])
while time.monotonic() < end:
    pass
"""
in_program = busy_queue.command("in_program", [sys.executable, "-c", BUSY, "{seconds}"])


@busy_queue.task(executor="process")
def never_returns(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    while True:
        pass


async def main(url: str, folder: str) -> None:
    """Run two jobs that never return."""
    busy_queue._context.connection.move(url)
    async with busy_queue:
        for n in range(2):
            await never_returns.enqueue(f"{folder}/{n}.pid")
        await Worker(busy_queue, pool=2).run()


if __name__ == "__main__":
    # Children import tasks by the name of their module, so this program imports itself.
    asyncio.run(importlib.import_module("tests.executors.apps.load").main(*sys.argv[1:]))
