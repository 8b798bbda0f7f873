"""The worker of a run: `python -m tests.faults.ledger.tasks NAME`.

Each handler writes to the ledger when it begins and when it is about to return, and goes on when
that is on the disk. The environment says which store, which ledger and which lease.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
import random
import re
import sys
import time
from functools import cache
from pathlib import Path

from jobq import Retry, Worker, current_job
from tests.faults.ledger import facts
from tests.faults.ledger.journal import Journal
from tests.faults.ledger.queues import ledger_queue
from tests.waiting import blocks, takes

FOLDER = Path(os.environ.get("LEDGER_FOLDER", "."))
EXECUTOR = os.environ.get("LEDGER_EXECUTOR", "mixed")
LEASE_S = float(os.environ.get("LEDGER_LEASE_S", "2"))
CONCURRENCY = int(os.environ.get("LEDGER_CONCURRENCY", "20"))
"""Jobs that a worker runs at once: so many runs does a kill interrupt."""
WORK_S = float(os.environ.get("LEDGER_WORK_MS", "5")) / 1000
"""Seconds that a handler works on average."""
FAILS = 50
"""One job in so many fails at first, and is retried."""
LONG = 200
"""One job in so many takes a fifth of the lease."""
MAX_STALLS = 1_000_000
"""No job may fail because faults met it often."""

queue = ledger_queue()
_refused = re.compile(r"j(\d{8})\b.*\(attempt (\d+)\) lost its lease")


class FirstTime(Exception):
    """The failure of a job that is retried."""


@cache
def journal() -> Journal:
    """This process's part of the ledger."""
    return Journal(FOLDER / f"runs-{os.getpid()}-{time.monotonic_ns()}.facts")


def _line(write: object, n: int) -> str:
    job = current_job()
    lease = job._run.lease
    make = facts.run_started if write == "start" else facts.run_ended
    return make(n, facts.now_ms(), lease.attempt, lease.life, os.environ["LEDGER_WORKER"])


def _seconds(n: int) -> float:
    """How long the handler of a job works."""
    return LEASE_S / 5 if n % LONG == 7 else random.random() * 2 * WORK_S


def _fail_at_first(n: int) -> None:
    if n % FAILS == 0 and current_job().attempt == 1:
        raise FirstTime


@queue.task(retry=Retry(1000, base=0.05, cap=1), max_stalls=MAX_STALLS)
async def inline(n: int) -> int:
    await journal().note(_line("start", n))
    await takes(_seconds(n))
    _fail_at_first(n)
    await journal().note(_line("end", n))
    return n


def _block(n: int) -> int:
    journal().write(_line("start", n))
    blocks(_seconds(n))
    _fail_at_first(n)
    journal().write(_line("end", n))
    return n


@queue.task(executor="thread", retry=Retry(1000, base=0.05, cap=1), max_stalls=MAX_STALLS)
def thread(n: int) -> int:
    return _block(n)


def process(n: int) -> int:
    return _block(n)


if EXECUTOR in ("process", "mixed"):  # a worker with such a task starts its pool at once
    queue.task(executor="process", retry=Retry(1000, base=0.05, cap=1), max_stalls=MAX_STALLS)(
        process
    )


queue.command(
    "command",
    [sys.executable, "-I", "-S", str(Path(__file__).with_name("program.py")), "{n}"],
    env=["LEDGER_FOLDER", "LEDGER_WORKER"],
    retry=Retry(1000, base=0.05, cap=1),
    max_stalls=MAX_STALLS,
)


class RefusedReports(logging.Handler):
    """Writes down each report that the store has refused because its lease was lost."""

    def emit(self, record: logging.LogRecord) -> None:
        found = _refused.search(record.getMessage())
        if found is not None and record.funcName == "_settled":  # not of a run that goes on
            journal().write(facts.refused(int(found[1]), facts.now_ms(), int(found[2])))


async def main(name: str) -> None:
    """Work until SIGTERM."""
    os.environ["LEDGER_WORKER"] = name  # children and programs get it too
    logging.getLogger("jobq").addHandler(RefusedReports())
    logging.basicConfig(level=logging.WARNING)
    worker = Worker(queue, concurrency=CONCURRENCY, lease=LEASE_S, drain=5, pool=2, name=name)
    await worker.run()


if __name__ == "__main__":
    # Children import tasks by the name of their module, so this program imports itself.
    asyncio.run(importlib.import_module("tests.faults.ledger.tasks").main(sys.argv[1]))
