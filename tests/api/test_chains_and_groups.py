"""Chains, groups and chords: flows of a common shape in one call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from jobq import (
    Failure,
    InvalidJob,
    JobFailed,
    Queue,
    Reject,
    Worker,
    chain,
    chord,
    group,
)
from jobq.core.records.jobs import JobSpec, PutResult


@dataclass
class Receipt:
    invoice: int
    cents: int


async def test_a_chain_passes_each_result_to_the_next_step(queue: Queue) -> None:
    @queue.task
    async def add(a: int, b: int = 1) -> int:
        return a + b

    @queue.task
    def text(n: int) -> str:
        return f"<{n}>"

    async with Worker(queue):
        assert await (await chain(add, add, text, first=(1, 2))).result(timeout=10) == "<4>"
    with pytest.raises(InvalidJob, match="no steps"):
        await chain()


async def test_a_group_gathers_results_in_the_order_of_the_calls(queue: Queue) -> None:
    @queue.task
    async def receipt(n: int) -> Receipt:
        return Receipt(n, 2 * n)

    job = await group(receipt, ((n,) for n in range(20)))
    nothing = await group(receipt, [])
    async with Worker(queue):
        assert await job.result(timeout=10) == [Receipt(n, 2 * n) for n in range(20)]
        assert await nothing.result(timeout=10) == []
    assert (await job.info()).result[0] == Receipt(0, 0)
    with pytest.raises(InvalidJob, match="call 1: 7 is not a tuple"):
        await group(receipt, [(1,), 7])  # type: ignore[list-item]


async def test_a_group_with_failures_follows_on_child_failure(queue: Queue) -> None:
    @queue.task
    async def receipt(n: int) -> Receipt:
        if n == 1:
            raise Reject("no")
        return Receipt(n, n)

    calls = [(0,), (1,)]
    async with Worker(queue):
        with pytest.raises(JobFailed, match="failed: no"):
            await (await group(receipt, calls)).result(timeout=10)
        assert await (await group(receipt.options(on_child_failure="ignore"), calls)).result(
            timeout=10
        ) == [Receipt(0, 0), None]
        seen = await (await group(receipt.options(on_child_failure="continue"), calls)).result(
            timeout=10
        )
        assert seen[0] == Receipt(0, 0)
        assert isinstance(seen[1], Failure)
        assert (seen[1].reason, seen[1].message) == ("rejected", "no")


async def test_a_chord_gives_all_results_to_one_more_job(queue: Queue, url: str) -> None:
    async with Queue("other", url) as other:

        @queue.task
        async def receipt(n: int) -> Receipt:
            return Receipt(n, n)

        @other.task
        async def total(receipts: list[Receipt]) -> int:
            return sum(receipt.cents for receipt in receipts)

        async with Worker(queue, other):
            assert (
                await (await chord(receipt, [(n,) for n in range(10)], total)).result(timeout=10)
                == 45
            )


async def test_groups_work_in_keyed_queues_and_in_other_codecs(url: str) -> None:
    async with Queue("q", url, mode="keyed", codec="msgpack") as queue:

        @queue.task(key="key")
        async def blob(key: str, n: int) -> bytes:
            return b"\xfe" * n

        async with Worker(queue):
            assert await (await group(blob, [("a", 1), ("b", 2)])).result(timeout=10) == [
                b"\xfe",
                b"\xfe\xfe",
            ]


async def test_ten_thousand_children_go_in_by_bounded_calls_and_finish(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    @queue.task
    async def child(n: int) -> int:
        return n

    store, sizes = await queue._context.store(), list[int]()
    put = store.put

    async def counted(specs: Sequence[JobSpec], **options: Any) -> list[PutResult]:
        sizes.append(len(specs))
        return await put(specs, **options)

    monkeypatch.setattr(store, "put", counted)
    job = await group(child, ((n,) for n in range(10_000)))
    assert (sum(sizes), max(sizes)) == (10_001, 1000)
    async with Worker(queue, concurrency=1000):
        assert await job.result(timeout=100) == list(range(10_000))
