"""Tasks of one part of the application. This module knows no queue."""

from __future__ import annotations

from jobq import Tasks

tasks = Tasks()


@tasks.task(retry=5)
async def charge(invoice: int) -> str:
    return f"invoice {invoice} is charged"
