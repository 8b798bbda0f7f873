"""Another part of the application."""

from __future__ import annotations

from jobq import Tasks

tasks = Tasks()


@tasks.task
async def receipt(invoice: int) -> str:
    return f"receipt {invoice} is sent"
