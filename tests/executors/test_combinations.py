"""Child processes together with other features: codecs, flows, rate limits, two stores."""

from __future__ import annotations

from pathlib import Path

from jobq import Queue, Worker
from tests.executors.apps import work


async def test_arguments_and_results_use_the_codec_and_the_annotations(queue: Queue) -> None:
    async with work.packed, work.own, Worker(work.packed, work.own, pool=1):
        assert await work.mirrored.call(work.Point(1, 2), b"ab") == (work.Point(2, 1), b"ba")
        assert await work.doubled.call("ab") == "abab"


async def test_a_job_in_a_child_gets_the_results_of_a_flow(queue: Queue) -> None:
    async with Worker(queue, pool=2):
        async with queue.flow() as flow:
            parts = [flow.add(work.add, n, n) for n in range(3)]
            whole = flow.add(work.total, [part.ref for part in parts])
        assert await whole.result(timeout=20) == 6


async def test_a_rate_limit_of_another_system_holds_the_job(queue: Queue) -> None:
    async with Worker(queue, pool=1):
        assert await work.limited_once.call() == 0


async def test_queues_in_two_stores_share_the_pool(queue: Queue, tmp_path: Path) -> None:
    work.packed._context.connection.move(f"sqlite:///{tmp_path}/second.db")
    async with work.packed, Worker(queue, work.packed, pool=1):
        assert await work.mirrored.call(work.Point(1, 2), b"ab") == (work.Point(2, 1), b"ba")
        assert await work.add.call(1, 2) == 3
