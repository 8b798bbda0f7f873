"""Schedules: stored once, fired by workers, each time exactly once."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jobq import (
    ConfigError,
    Cron,
    Every,
    InvalidJob,
    JobNotFound,
    Queue,
    Rate,
    Retry,
    State,
    Unique,
    Worker,
    current_job,
    testing,
)
from jobq.testing import Sandbox


class Clockwork:
    """A task that notes when it was due."""

    def __init__(self, queue: Queue) -> None:
        self.ran: list[str] = []

        @queue.task
        async def note(what: str = "tick") -> str:
            self.ran.append(what)
            return what

        self.note = note


@pytest.fixture
def work(clocked: Queue) -> Clockwork:
    return Clockwork(clocked)


# ── storing ───────────────────────────────────────────────────────────────────────────────────────


async def test_a_schedule_can_be_read_back(jobs: Sandbox, clocked: Queue, work: Clockwork) -> None:
    await clocked.schedule(
        "report", Cron("0 6 * * *", tz="Europe/Zurich", times=3, catch_up="one"), work.note, "daily"
    )
    later = jobs.clock.now() + timedelta(hours=1)
    await clocked.schedule("ping", Every(90, start=later), work.note.options(priority=5), what="p")
    ping, report = await clocked.schedules()
    assert (report.id, report.queue, report.name, report.args) == (
        "report",
        "api",
        "note",
        ("daily",),
    )
    assert (report.cron, report.tz, report.times, report.catch_up) == (
        "0 6 * * *",
        "Europe/Zurich",
        3,
        "one",
    )
    assert report.next_at == datetime(2026, 3, 3, 5, tzinfo=UTC)
    assert (ping.every, ping.kwargs, ping.next_at) == (timedelta(seconds=90), {"what": "p"}, later)
    assert (ping.fired, ping.last_at, ping.paused) == (0, None, False)


async def test_the_same_schedule_again_continues_and_a_different_one_starts_over(
    jobs: Sandbox, clocked: Queue, work: Clockwork
) -> None:
    await clocked.schedule("s", Every(60), work.note)
    jobs.clock.advance(60)
    assert await jobs.drain() == 1
    jobs.clock.advance(30)
    await clocked.schedule("s", Every(60), work.note)
    (info,) = await clocked.schedules()
    assert (info.fired, info.next_at) == (1, jobs.clock.now() + timedelta(seconds=30))
    await clocked.schedule("s", Every(60), work.note, "other")
    (info,) = await clocked.schedules()
    assert (info.fired, info.next_at) == (0, jobs.clock.now() + timedelta(seconds=60))


async def test_a_schedule_can_be_removed_and_its_jobs_stay(
    jobs: Sandbox, clocked: Queue, work: Clockwork
) -> None:
    await clocked.schedule("s", Every(60), work.note)
    jobs.clock.advance(60)
    await jobs.drain()
    assert await clocked.unschedule("s")
    with pytest.raises(JobNotFound, match="no schedule 's'"):
        await clocked.unschedule("s")
    jobs.clock.advance(600)
    assert await jobs.drain() == 0
    assert len(await jobs.enqueued(work.note)) == 1


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "no time": (
        lambda q, t: q.schedule("s", "daily", t),
        ConfigError,
        "'daily' is neither a Cron nor an Every",
    ),
    "a bad id": (
        lambda q, t: q.schedule("a" * 201, Every(60), t),
        InvalidJob,
        "schedule id=.* too long",
    ),
    "another queue's task": (
        lambda q, t: q.schedule("s", Every(60), Queue("x").task_by_name("t")),
        InvalidJob,
        "another queue",
    ),
    "arguments that do not fit": (
        lambda q, t: q.schedule("s", Every(60), t, wat=1),
        InvalidJob,
        "did you mean 'what'",
    ),
    "an id for all its jobs": (
        lambda q, t: q.schedule("s", Every(60), t.options(id="x")),
        InvalidJob,
        "id of all its jobs",
    ),
    "a delay": (
        lambda q, t: q.schedule("s", Every(60), t.options(delay=5)),
        InvalidJob,
        "leave out delay",
    ),
    "jobs to wait for": (
        lambda q, t: q.schedule("s", Every(60), t.options(after=[q.job("x")])),
        InvalidJob,
        "after=",
    ),
}


@pytest.mark.parametrize("bad", BAD)
async def test_invalid_schedules_are_refused(clocked: Queue, work: Clockwork, bad: str) -> None:
    attempt, error, said = BAD[bad]
    with pytest.raises(error, match=said):
        await attempt(clocked, work.note)
    assert await clocked.schedules() == []


def test_a_mistake_in_an_expression_is_shown_where_it_is() -> None:
    with pytest.raises(ConfigError, match="99"):
        Cron("0 99 * * *")
    with pytest.raises(ConfigError, match="Europe/Zürich"):
        Cron("0 6 * * *", tz="Europe/Zürich")


# ── firing ────────────────────────────────────────────────────────────────────────────────────────


async def test_each_time_makes_one_job_that_names_its_schedule(
    jobs: Sandbox, clocked: Queue, work: Clockwork
) -> None:
    await clocked.schedule("s", Every(60), work.note, "x")
    at = jobs.clock.advance(60)
    assert [await jobs.drain(), await jobs.drain()] == [1, 0]
    (job,) = await jobs.enqueued(work.note)
    assert (job.id, job.schedule, job.args) == (f"s@{int(at.timestamp() * 1000)}", "s", ("x",))
    assert (await clocked.schedules())[0].last_at == at


async def test_times_do_not_drift(jobs: Sandbox, clocked: Queue, work: Clockwork) -> None:
    begin = jobs.clock.now()
    await clocked.schedule("s", Every(60), work.note)
    for late in (1, 7, 29):
        jobs.clock.advance(60 + late)  # the scheduler runs late
        await jobs.drain()
    assert (await clocked.schedules())[0].next_at == begin + timedelta(seconds=240)


@pytest.mark.parametrize(
    ("catch_up", "made", "missed"), [("skip", 0, 1), ("one", 1, 1), ("all", 5, 0)]
)
async def test_catch_up_decides_what_happens_for_missed_times(
    jobs: Sandbox, clocked: Queue, work: Clockwork, catch_up: Any, made: int, missed: int
) -> None:
    await clocked.schedule("s", Every(3600, catch_up=catch_up), work.note)
    first = int(jobs.clock.now().timestamp() * 1000) + 3_600_000
    jobs.clock.advance(5 * 3600 + 1800)
    assert await jobs.drain() == made
    jobs.clock.advance(1800)
    assert await jobs.drain() == 1
    events = [event async for event in clocked.events(after="0", follow=False)]
    reasons = [event.reason for event in events if event.kind == "missed"]
    assert reasons == [f"s@{first}"] * missed


async def test_a_schedule_stops_after_its_times_and_at_its_end(
    jobs: Sandbox, clocked: Queue, work: Clockwork
) -> None:
    await clocked.schedule("limited", Every(60, times=2), work.note, "limited")
    await clocked.schedule(
        "ending", Every(60, end=jobs.clock.now() + timedelta(seconds=190)), work.note, "ending"
    )
    for _ in range(6):
        jobs.clock.advance(60)
        await jobs.drain()
    assert (work.ran.count("limited"), work.ran.count("ending")) == (2, 3)
    assert [info.next_at for info in await clocked.schedules()] == [None, None]


async def test_a_paused_schedule_makes_nothing_until_it_is_resumed(
    jobs: Sandbox, clocked: Queue, work: Clockwork
) -> None:
    await clocked.schedule("s", Every(60), work.note)
    assert await clocked.pause_schedule("s")
    assert not await clocked.pause_schedule("s")
    jobs.clock.advance(600)
    assert await jobs.drain() == 0
    assert (await clocked.schedules())[0].paused
    assert await clocked.resume_schedule("s")
    assert not await clocked.resume_schedule("s")
    jobs.clock.advance(60)
    assert await jobs.drain() == 1


@pytest.mark.parametrize(
    "operation", ["unschedule", "pause_schedule", "resume_schedule", "run_schedule"]
)
async def test_an_unknown_schedule_is_not_found(clocked: Queue, operation: str) -> None:
    with pytest.raises(JobNotFound, match="no schedule 'nobody' in queue"):
        await getattr(clocked, operation)("nobody")


async def test_a_schedule_can_be_run_now_beside_its_times(
    jobs: Sandbox, clocked: Queue, work: Clockwork
) -> None:
    await clocked.schedule("s", Every(60), work.note, "x")
    job = await clocked.run_schedule("s")
    assert await jobs.drain() == 1
    assert await job.result() == "x"
    assert (job.name, (await job.info()).schedule) == ("note", "s")
    (info,) = await clocked.schedules()
    assert (info.fired, info.next_at) == (0, jobs.clock.now() + timedelta(seconds=60))


async def test_after_complete_counts_from_the_end_and_never_overlaps(
    jobs: Sandbox, clocked: Queue
) -> None:
    @clocked.task(retry=Retry(max_retries=1, base=1, jitter=0))
    async def slow() -> None:
        if current_job().attempt == 1:
            raise ValueError("again")

    await clocked.schedule("s", Every(60, after_complete=True), slow)
    jobs.clock.advance(60)
    assert await jobs.drain() == 1
    jobs.clock.advance(
        0.5
    )  # its retry is not due yet, and while it is unfinished nothing more comes
    assert (await clocked.schedules())[0].next_at is None
    extra = await clocked.run_schedule("s")  # beside: its end is not the one that is waited for
    await extra.cancel()
    assert (await clocked.schedules())[0].next_at is None
    ended = jobs.clock.advance(0.5)
    assert await jobs.drain() == 1
    assert (await clocked.schedules())[0].next_at == ended + timedelta(seconds=60)


async def test_a_time_whose_job_is_a_duplicate_counts_as_fired(
    jobs: Sandbox, clocked: Queue
) -> None:
    @clocked.task(unique=Unique())
    async def rare() -> None: ...

    held = await rare.options(delay=86_400).enqueue()
    await clocked.schedule("s", Every(60), rare)
    jobs.clock.advance(60)
    assert await jobs.drain() == 0
    assert (await clocked.schedules())[0].fired == 1
    assert [job.id for job in await jobs.enqueued(rare)] == [held.id]


async def test_schedules_continue_while_the_queue_is_paused_or_limited(
    jobs: Sandbox, clocked: Queue, work: Clockwork
) -> None:
    await clocked.schedule("s", Every(60), work.note)
    await clocked.pause()
    jobs.clock.advance(60)
    assert await jobs.drain() == 0
    assert (await clocked.counts())[State.WAITING] == 1
    await clocked.resume()
    await clocked.set_limits(rate=Rate(1, per=3600))
    jobs.clock.advance(60)
    assert await jobs.drain() == 1
    assert (await clocked.counts())[State.WAITING] == 1


# ── declared with the task, fired by workers ──────────────────────────────────────────────────────


async def test_a_task_can_have_a_schedule_that_every_worker_stores(queue: Queue) -> None:
    runs = asyncio.Semaphore(0)

    @queue.task(schedule=Every(0.05), priority=3)
    async def beat() -> None:
        runs.release()

    workers = [Worker(queue), Worker(queue)]
    for worker in workers:
        worker.settings = replace(worker.settings, schedule_ms=10)
    async with workers[0], workers[1], asyncio.timeout(20):
        for _ in range(3):
            await runs.acquire()
        (info,) = await queue.schedules()
    assert (info.id, info.name, info.every) == ("beat", "beat", timedelta(seconds=0.05))
    made = [job async for job in queue.find(name="beat")]
    assert len({job.id for job in made}) == len(made) >= 3
    assert {job.priority for job in made} == {3}
    assert all(job.id.startswith("beat@") for job in made)


async def test_a_scheduled_task_needs_no_arguments(queue: Queue) -> None:
    with pytest.raises(
        ConfigError, match=r"task beat with a schedule is called without arguments: .*missing.*'n'"
    ):

        @queue.task(schedule=Every(60))
        async def beat(n: int) -> None: ...

    assert not queue._context.planned
    with pytest.raises(ConfigError, match="schedule=60"):
        queue.task(schedule=60)(lambda: None)  # type: ignore[call-overload]


async def test_a_worker_of_other_queues_fires_schedules_too(queue: Queue, url: str) -> None:
    await queue.schedule("s", Every(0.01), queue.task_by_name("nobody"))
    async with Queue("other", url) as other, queue.events(after="0") as events:
        worker = Worker(other)
        worker.settings = replace(worker.settings, schedule_ms=10)
        async with worker, asyncio.timeout(20):
            assert [str((await anext(events)).kind) for _ in range(2)] == ["schedule", "accepted"]


async def test_a_sandbox_fires_the_schedules_of_tasks() -> None:
    shop = Queue("shop", "valkey://nowhere:1")
    ran: list[int] = []

    @shop.task(schedule=Cron("0 6 * * *"))
    def digest() -> None:
        ran.append(current_job().attempt)

    async with testing.use(
        shop, clock=testing.FakeClock(datetime(2026, 3, 2, 5, 30, tzinfo=UTC))
    ) as jobs:
        assert await jobs.drain() == 0
        jobs.clock.advance(1800)
        assert await jobs.drain() == 1
    async with testing.use(
        shop, clock=testing.FakeClock(datetime(2026, 3, 2, 5, 30, tzinfo=UTC))
    ) as jobs:
        jobs.clock.advance(1800)  # before the first drain
        assert await jobs.drain() == 1


def test_schedules_have_a_blocking_api() -> None:
    shop = Queue("shop", "memory://nowhere")

    @shop.task
    def note(n: int) -> int:
        return n

    with testing.use(shop) as jobs:
        shop.sync.schedule("s", Every(60), note, n=3)
        assert [info.id for info in shop.sync.schedules()] == ["s"]
        assert shop.sync.pause_schedule("s")
        assert shop.sync.resume_schedule("s")
        job = shop.sync.run_schedule("s")
        assert jobs.sync.drain() == 1
        assert job.result() == 3
        assert shop.sync.unschedule("s")
