"""A stop lets runs end, then releases the rest. No job is lost or loses a retry."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import pytest

from jobq.core.records.states import State
from jobq.errors import ConfigError, InvalidJob
from jobq.stores.base import Store
from tests.waiting import nothing_happens

from .kit import Bench, Proxy, eventually, soon


class Stage:
    """A handler that waits until the test releases it."""

    def __init__(self, bench: Bench) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.interrupted = False

        @bench.task
        async def work() -> str:
            self.begun.set()
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.interrupted = True
                raise
            return "done"


@pytest.fixture
def stage(bench: Bench) -> Stage:
    return Stage(bench)


async def test_a_stopping_worker_lets_its_runs_end(bench: Bench, stage: Stage) -> None:
    id = await bench.add("work")
    worker = bench.worker()
    async with worker:
        await soon(stage.begun)
        stopping = asyncio.ensure_future(worker.stop(drain=60))
        other = await bench.add("work")
        await asyncio.sleep(0)
        assert not stopping.done()
        stage.go.set()
        await stopping
    assert (await bench.get(id)).state is State.COMPLETED
    assert (await bench.get(other)).state is State.WAITING


async def test_a_job_that_does_not_end_in_time_is_released_and_loses_no_retry(
    bench: Bench, stage: Stage
) -> None:
    id = await bench.add("work")
    async with bench.worker() as worker:
        await soon(stage.begun)
        await worker.stop(drain=0.05)
    record = await bench.get(id)
    assert stage.interrupted
    assert (record.state, record.failures, record.stalls, record.attempt) == (
        State.WAITING,
        0,
        0,
        1,
    )
    assert (await bench.kinds())["released"] == 1


async def test_a_released_job_is_the_next_to_run(bench: Bench, stage: Stage) -> None:
    first = await bench.add("work")
    async with bench.worker(concurrency=1) as worker:
        await soon(stage.begun)
        await bench.add("work")
        await worker.stop(drain=0)
    stage.begun.clear()
    async with bench.worker(concurrency=1):
        await soon(stage.begun)
        assert (await bench.get(first)).state is State.ACTIVE
        stage.go.set()
        await bench.all_in(State.COMPLETED, 2)


async def test_a_job_whose_handler_ignores_the_interruption_is_released_nevertheless(
    bench: Bench,
) -> None:
    begun, may_end = asyncio.Event(), asyncio.Event()

    @bench.task
    async def stubborn() -> str:
        begun.set()
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                pass
        return "too late"

    id = await bench.add("stubborn")
    async with bench.worker(settings={"grace_ms": 50}) as worker:
        await soon(begun)
        await worker.stop(drain=0)
        record = await bench.get(id)
        assert (record.state, record.failures, record.stalls) == (State.WAITING, 0, 0)
        may_end.set()
        await asyncio.sleep(0)
    assert (await bench.get(id)).state is State.WAITING


async def test_the_job_of_a_thread_is_released_without_waiting_for_the_thread(bench: Bench) -> None:
    begun, may_end = threading.Event(), threading.Event()

    @bench.task
    def slow() -> str:
        begun.set()
        may_end.wait(30)
        return "too late"

    id = await bench.add("slow")
    async with bench.worker() as worker:
        await eventually(begun.is_set)
        await worker.stop(drain=0)
        assert (await bench.get(id)).state is State.WAITING
        may_end.set()
    assert (await bench.get(id)).state is State.WAITING


async def test_a_second_stop_ends_the_waiting_of_the_first(bench: Bench, stage: Stage) -> None:
    id = await bench.add("work")
    async with bench.worker() as worker:
        await soon(stage.begun)
        first = asyncio.ensure_future(worker.stop(drain=600))
        await asyncio.sleep(0)
        await asyncio.wait_for(worker.stop(drain=0), 10)
        await first
    assert (await bench.get(id)).state is State.WAITING


async def test_a_job_that_arrives_in_an_exchange_under_way_is_released(
    bench: Bench, line: Proxy, stage: Stage
) -> None:
    claimed, answer_now = asyncio.Event(), asyncio.Event()

    async def after(method: str, answer: object) -> None:
        if method == "settle" and getattr(answer, "leases", None):
            claimed.set()
            await answer_now.wait()

    line.after = after
    id = await bench.add("work")
    async with bench.through(line).worker() as worker:
        await soon(claimed)
        stopping = asyncio.ensure_future(worker.stop(drain=60))
        await asyncio.sleep(0)
        answer_now.set()
        await stopping
    assert not stage.begun.is_set()
    record = await bench.get(id)
    assert (record.state, record.stalls) == (State.WAITING, 0)


async def test_leases_of_a_lost_reply_are_released_at_the_stop(
    bench: Bench, line: Proxy, stage: Stage
) -> None:
    losing = True
    line.lose = lambda method: method == "settle" and losing
    id = await bench.add("work")
    async with bench.through(line).worker() as worker:
        await eventually(lambda: len(line.of("settle")) > 2)
        stopping = asyncio.ensure_future(worker.stop(drain=600))
        await eventually(lambda: worker._stations[0].runner.stopping)
        losing = False
        await asyncio.wait_for(stopping, 30)
    assert not stage.begun.is_set()
    record = await bench.get(id)
    assert (record.state, record.stalls, record.failures) == (State.WAITING, 0, 0)


async def test_a_worker_whose_store_is_gone_still_stops(
    bench: Bench, line: Proxy, stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    await bench.add("work")
    async with bench.through(line).worker(settings={"close_timeout_ms": 100}) as worker:
        await soon(stage.begun)
        line.down = True
        await asyncio.wait_for(worker.stop(drain=0), 20)
    assert "could not be released" in caplog.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_one_signal_drains(bench: Bench, stage: Stage, number: signal.Signals) -> None:
    id = await bench.add("work")
    running = asyncio.ensure_future(bench.worker().run())
    await soon(stage.begun)
    os.kill(os.getpid(), number)
    await nothing_happens(0.05, "the worker ends before its job has")
    assert not running.done()
    stage.go.set()
    await asyncio.wait_for(running, 10)
    assert (await bench.get(id)).state is State.COMPLETED


async def test_a_second_signal_releases_the_jobs_at_once(
    bench: Bench, stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "jobq")
    id = await bench.add("work")
    running = asyncio.ensure_future(bench.worker(drain=600).run())
    await soon(stage.begun)
    os.kill(os.getpid(), signal.SIGTERM)
    await eventually(lambda: "finishing running jobs" in caplog.text)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(running, 10)
    assert (await bench.get(id)).state is State.WAITING


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_two_signals_that_arrive_together_are_two(
    bench: Bench, stage: Stage, second: signal.Signals
) -> None:
    id = await bench.add("work")
    running = asyncio.ensure_future(bench.worker(drain=600).run())
    await soon(stage.begun)
    os.kill(
        os.getpid(), signal.SIGTERM
    )  # nothing is awaited between the two: the loop hears of both in one turn
    os.kill(os.getpid(), second)
    await asyncio.wait_for(running, 10)
    assert (await bench.get(id)).state is State.WAITING


async def test_a_cancelled_worker_releases_its_jobs_before_it_ends(
    bench: Bench, stage: Stage
) -> None:
    id = await bench.add("work")
    running = asyncio.ensure_future(bench.worker(drain=600).run())
    await soon(stage.begun)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert (await bench.get(id)).state is State.WAITING


@pytest.mark.parametrize(
    ("asked", "state"), [("shutdown", State.COMPLETED), ("shutdown-now", State.WAITING)]
)
async def test_a_worker_does_what_an_operator_requests(
    bench: Bench, store: Store, stage: Stage, asked: str, state: State
) -> None:
    id = await bench.add("work")
    worker = bench.worker(name="w1", settings={"beat_ms": 20})
    running = asyncio.ensure_future(worker.run())
    await soon(stage.begun)
    await eventually(lambda: store.ask_worker("w1", asked))  # type: ignore[arg-type]
    if asked == "shutdown":
        stage.go.set()
    await asyncio.wait_for(running, 10)
    assert (await bench.get(id)).state is state


async def test_a_worker_works_once(bench: Bench) -> None:
    worker = bench.worker()
    async with worker:
        pass
    with pytest.raises(ConfigError, match="was already started"):
        await worker.run()


async def test_a_worker_that_never_started_can_be_stopped(bench: Bench) -> None:
    await bench.worker().stop()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"concurrency": 0}, "concurrency=0"),
        ({"lease": 0}, "lease=0"),
        ({"drain": -1}, "drain=-1"),
        ({"concurrency": 1.5}, "concurrency=1.5"),
    ],
)
def test_bad_options_are_refused_by_name(options: dict[str, float], named: str) -> None:
    from jobq.api.worker import Worker

    with pytest.raises(ConfigError, match=named):
        Worker(Bench(None), **options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no queue"):
        Worker()
    with pytest.raises(InvalidJob, match="name="):
        Worker(Bench(None), name="")  # type: ignore[arg-type]
