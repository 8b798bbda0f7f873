"""The application of the demo, as anyone would write one: a queue and eight tasks.

`jq-worker --app shop:shop` works on it, and `story.py` sends the jobs.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import tempfile
from pathlib import Path

from jobq import Queue, Retry, current_job

# The story passes DEMO_DIR on to the workers, so that all processes share one folder.
FOLDER = Path(os.environ.get("DEMO_DIR") or tempfile.mkdtemp(prefix="jobq-demo-"))
URL = f"sqlite:///{FOLDER}/jobs.db"
shop = Queue("shop", URL)


@shop.task
async def resize(picture: int, width: int) -> str:
    """Waits a little, as for a disk or a network."""
    await asyncio.sleep(0.02 + picture % 5 / 50)
    return f"picture-{picture}-{width}.png"


@shop.task
def checksum(block: int) -> str:
    """Runs in a thread, because it is a plain function."""
    return hashlib.sha256(bytes([block % 256]) * 200_000).hexdigest()[:12]


@shop.task(retry=Retry(5, base=0.2, factor=1.5, jitter=0.2))
async def fetch(page: int) -> int:
    """Fails at first for two pages in three: they succeed on the second or third attempt."""
    if current_job().attempt <= page % 3:
        raise ConnectionError(f"page {page} did not answer")
    return page


@shop.task
async def remind(customer: int) -> None:
    """Is enqueued with a delay."""


@shop.task
async def urgent(order: int) -> None:
    """Is enqueued last, with a priority: it runs before every job that waits."""


@shop.task
async def price(article: int) -> float:
    """Returns a result that its caller waits for."""
    return article * 1.08


@shop.task(retry=Retry(2, base=0.2))
def invoice(number: int) -> str:
    """Fails on every attempt until there are exchange rates, and becomes a dead letter."""
    rates = FOLDER / "rates.txt"
    if not rates.exists():
        raise LookupError(f"no exchange rate for invoice {number}")
    return f"invoice {number}: {float(rates.read_text()) * number:.2f} francs"


@shop.task
async def film(title: str) -> None:
    """Runs for a quarter of an hour, reports its progress, and stops when it is cancelled."""
    job = current_job()
    for minute in range(10_000):
        await job.progress({"minute": minute})
        await asyncio.sleep(0.1)
