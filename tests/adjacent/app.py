"""An application that two releases of jobq run beside each other. It uses what both of them have.

- `python app.py put NAME` enqueues one job of every kind, with ids that begin with NAME.
- `python app.py work NAME` works until all jobs of NAME have ended, and prints their results.
- `python app.py read NAME` prints their results without working.
- `python app.py workers 0` prints how many workers there are.
- `python app.py share N` enqueues N jobs, and prints how many of them each release has run.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from hashlib import pbkdf2_hmac

from jobq import Queue, Retry, Unique, Worker, __version__, current_job

URL = os.environ["JQ_URL"]
jobs = Queue("jobs", URL)
keyed = Queue("keyed", URL, mode="keyed")
KINDS = ("plain", "delayed", "urgent", "retried", "unique", "keyed-0", "keyed-1", "child", "parent")


@jobs.task(retry=Retry(3, base=0.05))
async def add(a: int, b: int, fail: bool = False) -> int:
    job = current_job()
    if fail and job.attempt == 1:
        raise ConnectionError("the first attempt fails")
    await job.log(f"run by {__version__}")
    return a + b


@keyed.task(key="customer")
async def bill(customer: str, n: int) -> str:
    return f"{customer}:{n}"


@jobs.task
def digest() -> str:
    """Takes some milliseconds, so that one worker cannot run all jobs before the other looks."""
    pbkdf2_hmac("sha256", b"password", b"salt", 10_000)
    return __version__


async def share(n: int) -> Counter[str]:
    handles = await digest.enqueue_many([()] * n)
    return Counter([await job.result(timeout=60) for job in handles])


async def put(name: str) -> None:
    await add.options(id=f"{name}-plain").enqueue(1, 2)
    await add.options(id=f"{name}-delayed", delay=0.2).enqueue(1, 3)
    await add.options(id=f"{name}-urgent", priority=9).enqueue(1, 4)
    await add.options(id=f"{name}-retried").enqueue(1, 5, fail=True)
    await add.options(id=f"{name}-unique", unique=Unique()).enqueue(len(name), 6)
    for n in range(2):
        await bill.options(id=f"{name}-keyed-{n}").enqueue("acme", n)
    async with jobs.flow() as flow:
        child = flow.add(add.options(id=f"{name}-child"), 2, 3)
        flow.add(add.options(id=f"{name}-parent"), child.ref, 10)


async def ended(name: str) -> dict[str, object]:
    """The results of all jobs of a name, once all have ended."""
    found: dict[str, object] = {}
    for kind in KINDS:
        queue = keyed if kind.startswith("keyed") else jobs
        found[kind] = await queue.job(f"{name}-{kind}").result(timeout=60)
    return found


async def main(verb: str, name: str) -> None:
    async with jobs, keyed:
        if verb == "put":
            await put(name)
        elif verb == "work":
            async with Worker(jobs, keyed, name=f"{name}-{os.getpid()}"):
                sys.stdout.write(json.dumps(await ended(name)))
        elif verb == "workers":
            sys.stdout.write(str(len(await jobs.workers())))
        elif verb == "share":
            sys.stdout.write(json.dumps(await share(int(name))))
        else:
            sys.stdout.write(json.dumps(await ended(name)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
