"""Helpers for tests of jobs on their last chance."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import uuid4

from jobq.api.worker import Worker
from jobq.core.records.jobs import Claim

from .kit import Bench, eventually


async def frail(bench: Bench, name: str, *args: Any) -> str:
    """Add a job on its last chance. There must be nothing else to claim."""
    id = await bench.add(name, *args, max_stalls=1)
    store = await bench.store()
    (lease,) = (
        await store.settle(
            [],
            worker="dies",
            call=uuid4().hex,
            then=Claim(queues=(bench.qname,), limit=1, lease_ms=1),
        )
    ).leases
    assert lease.id == id

    async def stalled() -> bool:
        await store.tick()
        return (await bench.get(id)).stalls == 1

    await eventually(stalled)
    return id


class Scene:
    """Tasks that tell when they run: `alone` is the job on its last chance, `other` any other."""

    def __init__(self, bench: Bench) -> None:
        self.running: set[str] = set()
        self.beside: list[set[str]] = []  # what else ran when `alone` began
        self.alone, self.other = asyncio.Event(), asyncio.Event()  # they have begun
        self.end_alone, self.end_other = asyncio.Event(), asyncio.Event()

        async def alone() -> None:
            self.beside.append(set(self.running))
            await self._run("alone", self.alone, self.end_alone)

        async def other() -> None:
            await self._run("other", self.other, self.end_other)

        for task in (alone, other):
            bench.task(task)

    async def _run(self, name: str, begun: asyncio.Event, end: asyncio.Event) -> None:
        self.running.add(name)
        begun.set()
        try:
            await end.wait()
        finally:
            self.running.discard(name)


async def left(worker: Worker) -> None:
    """Wait until the worker knows that the job is next, and claims nothing."""
    await eventually(lambda: worker._stations and worker._stations[0].fetcher._chance.closed)
