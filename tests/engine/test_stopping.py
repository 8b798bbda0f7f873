"""What `Worker.stop` returns, and KeyboardInterrupt and SystemExit in handlers."""

from __future__ import annotations

import asyncio

import pytest

from jobq import JobRef
from jobq.api.worker import _CLOSE_S, Stopped
from jobq.core.policies import Retry
from jobq.core.records.states import State
from jobq.engine.handler import BatchSize
from jobq.engine.identity import WorkerSettings
from jobq.stores import open_store
from tests.waiting import PATIENCE_S

from .kit import Bench, Proxy, eventually, soon


async def test_a_stop_returns_what_was_completed_and_what_was_released(bench: Bench) -> None:
    begun, let_go = asyncio.Semaphore(0), asyncio.Event()

    @bench.task
    async def short() -> None:
        begun.release()
        await let_go.wait()

    @bench.task
    async def broken() -> None:
        begun.release()
        await let_go.wait()
        raise ValueError

    @bench.task
    async def long() -> None:
        begun.release()
        await asyncio.Event().wait()

    ids = {name: await bench.add(name) for name in ("short", "broken", "long")}
    async with bench.worker() as worker:
        for _ in ids:
            await asyncio.wait_for(begun.acquire(), 20)
        first = asyncio.ensure_future(worker.stop(drain=600))
        await asyncio.sleep(0)
        let_go.set()
        await bench.all_in(State.COMPLETED, 1)
        stopped = await worker.stop(drain=0)
        assert await first == stopped == await worker.stop()
    job = {name: (JobRef(queue="work", id=id),) for name, id in ids.items()}
    assert stopped == Stopped(completed=job["short"], failed=job["broken"], released=job["long"])


async def test_a_stop_returns_the_jobs_that_an_unavailable_store_keeps(
    bench: Bench, store: object
) -> None:
    line = Proxy(store)  # type: ignore[arg-type]
    begun = asyncio.Event()

    @bench.task
    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    id = await bench.add("work")
    async with bench.through(line).worker(settings={"close_timeout_ms": 100}) as worker:
        await soon(begun)
        line.down = True
        assert await worker.stop(drain=0) == Stopped(left=(JobRef(queue="work", id=id),))


@pytest.mark.parametrize(
    "call", ["settle", "extend", "beat", "lead", "retire", "tick", "due", "note", "every call"]
)
async def test_a_stop_waits_for_no_reply_longer_than_it_may(
    bench: Bench, store: object, call: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The store is frozen: it takes calls and never replies. All waits of the stop share one
    time."""
    line = Proxy(store)  # type: ignore[arg-type]
    begun, frozen = asyncio.Event(), asyncio.Event()

    async def before(method: str, args: object) -> None:
        if frozen.is_set() and call in (method, "every call"):
            await asyncio.Event().wait()

    line.before = before

    @bench.task
    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    id = await bench.add("work")
    released = call not in ("settle", "every call")
    settings = {"close_timeout_ms": 1500 if released else 1}
    async with bench.through(line).worker(settings=settings) as worker:
        await soon(begun)
        frozen.set()
        stopped = await asyncio.wait_for(worker.stop(drain=0), PATIENCE_S)
    if not released:
        assert stopped.left == (JobRef(queue="work", id=id),)
        assert "1 jobs could not be released" in caplog.text
        assert "is not signed off" in caplog.text


def test_what_a_stop_may_wait_for_its_stores_adds_up_to_less_than_five_seconds() -> None:
    assert WorkerSettings().close_timeout_ms / 1000 + _CLOSE_S < 5


async def test_a_worker_that_never_started_returns_nothing(bench: Bench) -> None:
    assert await bench.worker().stop() == Stopped()


# ── KeyboardInterrupt ──


@pytest.mark.parametrize("kind", ["inline", "thread", "batch", "child task", "batch child task"])
async def test_a_keyboard_interrupt_in_a_handler_releases_its_job_and_stops_the_worker(
    bench: Bench, kind: str
) -> None:
    beside_begun, beside_go = asyncio.Event(), asyncio.Event()

    @bench.task
    async def beside() -> None:
        beside_begun.set()
        await beside_go.wait()

    if kind == "inline":

        @bench.task
        async def work() -> None:
            raise KeyboardInterrupt

    elif kind == "thread":

        @bench.task
        def work() -> None:  # type: ignore[misc]  # another kind of the same handler
            raise KeyboardInterrupt

    elif kind == "child task":

        @bench.task
        async def work() -> None:
            child = asyncio.create_task(raises(KeyboardInterrupt()))
            await asyncio.Event().wait()
            await child

    elif kind == "batch child task":

        @bench.task(batch=BatchSize(size=10, window_ms=0))
        async def work(items: list[object]) -> list[object]:  # type: ignore[misc]
            await asyncio.gather(raises(KeyboardInterrupt()))
            return items

    else:

        @bench.task(batch=BatchSize(size=10, window_ms=0))
        async def work(items: list[object]) -> None:  # type: ignore[misc]
            raise KeyboardInterrupt

    other = await bench.add("beside")
    running = asyncio.ensure_future(bench.worker().run())
    await soon(beside_begun)
    id = await bench.add("work", *([1] if "batch" in kind else []))

    async def released() -> bool:
        return "released" in await bench.kinds()

    await eventually(released)
    beside_go.set()  # what runs beside it may finish
    await asyncio.wait_for(running, 20)
    record = await bench.get(id)
    assert (record.state, record.failures, record.stalls) == (State.WAITING, 0, 0)
    assert (await bench.get(other)).state is State.COMPLETED


async def raises(error: BaseException) -> None:
    raise error


@pytest.mark.parametrize("awaited", [True, False])
@pytest.mark.parametrize("grouped", [True, False])
async def test_sys_exit_in_a_child_task_fails_its_job_and_the_worker_goes_on(
    bench: Bench, awaited: bool, grouped: bool
) -> None:
    @bench.task(retry=Retry(0))
    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            child = (group if grouped else asyncio).create_task(raises(SystemExit(3)))
            await (child if awaited else asyncio.Event().wait())

    @bench.task
    async def after() -> None:
        pass

    id = await bench.add("work")
    async with bench.worker():
        record = await bench.ended(id)
        assert (record.state, record.failures) == (State.FAILED, 1)
        assert record.failure is not None
        assert record.failure.type == "SystemExit"
        assert (await bench.ended(await bench.add("after"))).state is State.COMPLETED


async def test_child_tasks_of_a_handler_work_as_usual(bench: Bench) -> None:
    seen: list[str] = []

    async def child(name: str) -> str:
        await asyncio.sleep(0)
        return name

    @bench.task
    async def work() -> None:
        seen.append(await asyncio.create_task(child("result"), name="named"))
        waits = asyncio.create_task(asyncio.Event().wait())
        never_begun = asyncio.create_task(child("never"))
        never_begun.cancel()
        await asyncio.sleep(0)
        waits.cancel()
        for task in (waits, never_begun):
            with pytest.raises(asyncio.CancelledError):
                await task
        seen.append(repr(waits))
        with pytest.raises(ValueError, match="boom"):
            await asyncio.create_task(raises(ValueError("boom")))

    before = asyncio.get_running_loop().get_task_factory()
    id = await bench.add("work")
    async with bench.worker(), bench.worker():
        assert (await bench.ended(id)).state is State.COMPLETED
    assert seen[0] == "result"
    assert "Event.wait" in seen[1]
    assert asyncio.get_running_loop().get_task_factory() is before


def test_a_program_with_a_worker_beside_it_hears_of_the_interrupt_when_the_job_is_released() -> (
    None
):
    states: list[State] = []

    async def main() -> None:
        async with open_store("memory://interrupted") as store:
            bench = Bench(store)

            @bench.task
            async def work() -> None:
                raise KeyboardInterrupt

            id = await bench.add("work")
            try:
                async with bench.worker():
                    await asyncio.Event().wait()
            finally:
                states.append((await bench.get(id)).state)

    with pytest.raises(KeyboardInterrupt):
        asyncio.run(main())
    assert states == [State.WAITING]
