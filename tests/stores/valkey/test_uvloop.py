"""jq-worker runs on uvloop if it is installed, whose transports are not asyncio's."""

from __future__ import annotations

import asyncio

import pytest

from jobq import Queue, Worker
from tests.stores.valkey.servers import Server

uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed: pip install uvloop")


def test_a_job_is_enqueued_run_and_waited_for_on_uvloop(server: Server) -> None:
    queue = Queue("uvloop", server.url)

    @queue.task
    async def double(n: int) -> int:
        return 2 * n

    async def ask() -> int:
        async with queue, Worker(queue):
            return await double.call(21)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(ask()) == 42
