"""An application for the tests of the command lines.

jq-worker runs the queue `shop`; tests create it with their own URL."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from jobq import Queue, Retry, current_job


def make_shop(url: str | None = None) -> Queue:
    """The shop's queue with its tasks, on a store."""
    queue = Queue("shop", url)

    @queue.task
    async def add(a: int, b: int) -> int:
        return a + b

    @queue.task(retry=0)
    async def boom(text: str = "no such tenant") -> None:
        raise ValueError(text)

    @queue.task(retry=Retry(3, base=3600))
    async def flaky() -> None:
        raise ConnectionError("try later")

    @queue.task
    async def chatty(lines: int) -> None:
        for n in range(lines):
            await current_job().log(f"line {n}")

    @queue.task
    async def order(amount: int) -> object:
        receipt = await current_job().step("charge", lambda: {"receipt": amount})
        await current_job().step("ship", lambda: "tracking")
        await current_job().save("shipped")
        return receipt

    @queue.task
    async def approval() -> object:
        return await current_job().wait_for_signal("approved")

    @queue.task
    async def hold(folder: str) -> str:
        """Create a file to show that the job runs, and wait for a file `go`."""
        Path(folder, f"{current_job().id}.started").touch()
        while not Path(folder, "go").exists():
            await asyncio.sleep(0.02)
        return "went on"

    return queue


shop = make_shop(os.environ.get("JQ_TEST_SHOP"))
emails = Queue("emails")


@emails.task
async def send(to: str) -> None: ...


number = 7
