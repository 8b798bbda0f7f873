"""Plain functions run in threads: one per slot, each in its own context."""

from __future__ import annotations

import threading

from jobq.core.policies import Retry
from jobq.core.records.states import State
from tests.waiting import until

from .kit import Bench, eventually


async def test_plain_functions_run_side_by_side_up_to_the_concurrency(bench: Bench) -> None:
    inside, most, lock = 0, 0, threading.Lock()
    go = threading.Event()

    @bench.task
    def work(n: int) -> int:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        go.wait(30)
        with lock:
            inside -= 1
        return n

    await bench.add_many("work", 20)
    async with bench.worker(concurrency=5):
        await eventually(lambda: inside == 5)
        assert await bench.count(State.ACTIVE) == 5
        go.set()
        await bench.all_in(State.COMPLETED, 20)
    assert most == 5


async def test_threads_are_used_again(bench: Bench) -> None:
    used: set[int] = set()

    @bench.task
    def work(n: int) -> None:
        used.add(threading.get_ident())

    await bench.add_many("work", 200)
    async with bench.worker(concurrency=4):
        await bench.all_in(State.COMPLETED, 200)
    assert len(used) <= 4


async def test_what_a_plain_function_raises_is_its_failure(bench: Bench) -> None:
    @bench.task(retry=Retry(0))
    def broken() -> None:
        raise ValueError("no such thing")

    @bench.task(retry=Retry(0))
    def stops() -> None:
        raise StopIteration

    @bench.task(retry=Retry(0))
    def leaves() -> None:
        raise SystemExit(3)

    ids = [await bench.add(name) for name in ("broken", "stops", "leaves")]
    async with bench.worker():
        records = [await bench.ended(id) for id in ids]
    failures = [record.failure for record in records if record.failure is not None]
    assert [failure.type for failure in failures] == ["ValueError", "RuntimeError", "SystemExit"]
    assert "no such thing" in failures[0].message


async def test_the_event_loop_is_free_while_threads_work(bench: Bench) -> None:
    go = threading.Event()

    @bench.task
    def slow() -> None:
        go.wait(30)

    @bench.task
    async def quick() -> None: ...

    slow_id, quick_id = await bench.add("slow"), await bench.add("quick")
    async with bench.worker(concurrency=2):
        await bench.ended(quick_id)
        assert (await bench.get(slow_id)).state is State.ACTIVE
        go.set()
        await bench.ended(slow_id)


async def test_a_thread_that_overran_does_not_hold_up_the_end_of_the_worker(bench: Bench) -> None:
    go, begun = threading.Event(), threading.Event()

    @bench.task(timeout_ms=30, retry=Retry(0))
    def stuck() -> None:
        begun.set()
        go.wait(30)

    id = await bench.add("stuck")
    async with bench.worker():
        await bench.ended(id)
    assert begun.is_set()
    assert any(
        thread.name.startswith("jobq thread") and thread.daemon for thread in threading.enumerate()
    )
    go.set()
    await until(
        lambda: not any(t.name.startswith("jobq thread") for t in threading.enumerate()),
        "the threads to end",
    )
