"""Jobs by criteria: found, previewed, and cancelled, rerun and purged in bulk."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from jobq import BulkProgress, InvalidJob, Queue, Reject, State, Worker
from jobq.operations.listing import Matching
from jobq.testing import FakeClock, Sandbox


async def fail_some(queue: Queue, count: int = 12) -> Any:
    """`count` failed jobs each of charge.card and charge.bank, with two errors and tenants."""

    @queue.task(name="charge.card", retry=0)
    async def card(invoice: int, note: str = "") -> None:
        raise TimeoutError("no answer") if invoice % 2 else ValueError("bad card")

    @queue.task(name="charge.bank", retry=0)
    async def bank(invoice: int) -> None:
        raise Reject("closed")

    jobs = []
    for n in range(count):
        meta = {"tenant": "acme" if n % 3 else "globex"}
        jobs.append(await card.options(id=f"card{n}", meta=meta).enqueue(n))
        jobs.append(await bank.options(id=f"bank{n}", meta=meta).enqueue(invoice=n))
    async with Worker(queue, concurrency=5):
        for job in jobs:
            await job.wait(timeout=30)
    return card


async def ids(queue: Queue, **criteria: Any) -> set[str]:
    """The ids that a search finds."""
    return {job.id async for job in queue.find(**criteria)}


async def test_jobs_are_found_by_pattern_error_meta_and_argument(queue: Queue) -> None:
    await fail_some(queue, 6)
    cards, banks = {f"card{n}" for n in range(6)}, {f"bank{n}" for n in range(6)}
    assert await ids(queue, name="charge.*") == cards | banks
    assert await ids(queue, name="*card") == cards
    assert await ids(queue, error="TimeoutError") == {"card1", "card3", "card5"}
    assert await ids(queue, error="*bad card") == {"card0", "card2", "card4"}
    assert await ids(queue, error="rejected") == banks
    assert await ids(queue, meta={"tenant": "globex"}, name="*card") == {"card0", "card3"}
    assert await ids(queue, arguments={"invoice": 4}) == {"card4", "bank4"}
    assert await ids(queue, name="*", state="completed") == set()
    assert len([job async for job in queue.find(name="*bank", max_jobs=4)]) == 4
    with pytest.raises(InvalidJob, match="unknown criterion 'nme'"):
        await ids(queue, nme="x")


async def test_jobs_are_found_by_their_times(jobs: Sandbox, clocked: Queue) -> None:
    clock: FakeClock = jobs.clock
    task = clocked.task_by_name("later")
    for n in range(3):
        await task.options(id=f"j{n}").enqueue()
        clock.advance(60)
    middle = clock.now() - timedelta(seconds=150)
    assert await ids(clocked, created_before=middle) == {"j0"}
    assert await ids(clocked, created_after=middle) == {"j1", "j2"}
    assert await ids(clocked, ended_after=middle) == set()
    with pytest.raises(InvalidJob, match="no time zone"):
        await ids(clocked, created_after=middle.replace(tzinfo=None))


async def test_find_lists_the_oldest_first_if_asked(queue: Queue) -> None:
    await queue.task_by_name("t").enqueue_many([(n,) for n in range(150)])
    newest = [job.args[0] async for job in queue.find()]
    oldest = [job.args[0] async for job in queue.find(oldest_first=True)]
    assert oldest == list(range(150))
    assert newest == oldest[::-1]


async def test_a_preview_counts_shows_samples_and_changes_nothing(queue: Queue) -> None:
    await fail_some(queue, 8)
    preview = await queue.select("failed", name="charge.card", error="Timeout*").preview(samples=3)
    assert (preview.matched, preview.complete) == (4, True)
    assert len(preview.samples) == 3
    assert {job.failure.type for job in preview.samples if job.failure} == {"TimeoutError"}
    assert (await queue.counts())[State.FAILED] == 16


async def test_a_preview_looks_at_a_bounded_number_of_jobs(queue: Queue) -> None:
    await queue.task_by_name("t").enqueue_many([(n,) for n in range(1200)])
    some = await queue.select("waiting", arguments={"0": 3}).preview(max_jobs=400)
    assert (some.matched, some.complete, some.looked_at) == (0, False, 400)
    every = await queue.select("waiting").preview(samples=2, max_jobs=10)
    assert (every.matched, every.complete, every.looked_at) == (1200, True, 2)


async def test_a_selection_is_rerun_and_others_stay(queue: Queue) -> None:
    await fail_some(queue, 8)
    done = await queue.select("failed", error="TimeoutError", meta={"tenant": "acme"}).rerun()
    assert (done.changed, done.skipped, done.cursor) == (3, 0, None)
    assert await ids(queue, state="waiting") == {"card1", "card5", "card7"}


async def test_a_selection_is_purged_and_others_stay(queue: Queue) -> None:
    await fail_some(queue, 5)
    done = await queue.select("failed", name="*bank").purge()
    assert done.changed == 5
    assert await ids(queue) == {f"card{n}" for n in range(5)}


async def test_jobs_of_several_states_are_cancelled(queue: Queue) -> None:
    task = queue.task_by_name("t")
    await task.enqueue_many([(n,) for n in range(700)])
    await task.options(delay=60).enqueue_many([(n,) for n in range(30)])
    await queue.task_by_name("kept").enqueue()
    done = await queue.select("waiting", "delayed", name="t").cancel()
    assert done.changed == 730
    counts = await queue.counts()
    assert (counts[State.CANCELLED], counts[State.WAITING]) == (730, 1)


async def test_an_interrupted_operation_continues_at_its_cursor(queue: Queue) -> None:
    """The first run is cancelled in the middle, as by Ctrl-C. Together they miss no job."""
    await queue.task_by_name("t").enqueue_many([(n,) for n in range(1300)])
    await queue.task_by_name("u").enqueue_many([(n,) for n in range(1000)])
    selection = queue.select("waiting", name="t*")
    seen: list[BulkProgress] = []

    def stop_soon(progress: BulkProgress) -> None:
        seen.append(progress)
        if progress.changed >= 600:
            running.cancel()

    running = asyncio.create_task(selection.cancel(pace=100_000, on_progress=stop_soon))
    with pytest.raises(asyncio.CancelledError):
        await running
    assert 600 <= seen[-1].changed < 1300
    rest = await selection.cancel(cursor=seen[-1].cursor)
    assert rest.cursor is None
    assert rest.looked_at == 1300 - seen[-1].changed  # and not at the 1,000 others again
    assert (await queue.counts())[State.CANCELLED] == 1300


async def test_max_jobs_ends_an_operation_that_its_cursor_continues(queue: Queue) -> None:
    await queue.task_by_name("t").enqueue_many([(n,) for n in range(40)])
    selection = queue.select("waiting")
    first = await selection.purge(max_jobs=15)
    assert (first.changed, first.cursor is None) == (15, False)
    assert (await selection.purge(cursor=first.cursor)).changed == 25
    assert (await selection.purge(max_jobs=0)).changed == 0


async def test_a_cursor_of_another_selection_is_refused(queue: Queue) -> None:
    await queue.task_by_name("t").enqueue_many([(n,) for n in range(4)])
    stopped = await queue.select("waiting").cancel(max_jobs=1)
    with pytest.raises(InvalidJob, match="another selection"):
        await queue.select("waiting", name="u").cancel(cursor=stopped.cursor)


async def test_a_pace_slows_an_operation_down(queue: Queue) -> None:
    await queue.task_by_name("t").enqueue_many([(n,) for n in range(30)])
    loop = asyncio.get_running_loop()
    began = loop.time()
    done = await queue.select("waiting").cancel(pace=100)
    # 25 jobs per call at this pace: the second call waits until 25 jobs may be done.
    assert done.changed == 30
    assert loop.time() - began >= 0.25


async def test_a_job_that_fails_again_is_rerun_once_by_one_call(queue: Queue) -> None:
    task = await fail_some(queue, 5)
    reruns: list[str] = []
    async with Worker(queue, concurrency=5):
        # One job per call, so that the first has failed again before the last is reached.
        done = await queue.select("failed", name="*card").rerun(pace=40)
        assert done.changed == 5
        for n in range(5):
            await queue.job(f"card{n}").wait(timeout=30)
    async for job in queue.find(name=task.name):
        reruns += [job.id] * job.life
    assert sorted(reruns) == [f"card{n}" for n in range(5)]


async def test_a_state_that_a_command_does_not_apply_to_is_refused(queue: Queue) -> None:
    with pytest.raises(InvalidJob, match="rerun does not apply to waiting jobs: select completed"):
        await queue.select("waiting").rerun()
    with pytest.raises(InvalidJob, match="purge does not apply to active"):
        await queue.select("active").purge()
    with pytest.raises(InvalidJob, match="cancel does not apply to failed"):
        await queue.select("failed", "waiting").cancel()
    with pytest.raises(InvalidJob, match="at least one state"):
        queue.select()
    with pytest.raises(InvalidJob, match=r"pace=0 is out of range"):
        await queue.select("failed").rerun(pace=0)


async def test_the_actor_of_a_bulk_operation_is_recorded(queue: Queue) -> None:
    await queue.task_by_name("t").enqueue_many([(n,) for n in range(2)])
    await queue.as_actor("ann").select("waiting").cancel()
    events = [e async for e in queue.events(after="0", follow=False) if e.kind == "cancelled"]
    assert [e.actor for e in events] == ["ann", "ann"]


def test_a_selection_works_without_an_event_loop(url: str) -> None:
    with Queue("api", url).sync as queue:
        queue.task_by_name("t").enqueue_many([(n,) for n in range(5)])
        selection = queue.select("waiting", name="t")
        assert selection.preview().matched == 5
        seen: list[BulkProgress] = []
        assert selection.cancel(on_progress=seen.append).changed == 5
        assert seen[-1].cursor is None
        assert queue.select("cancelled", arguments={"0": 3}).rerun().changed == 1
        assert [job.args for job in queue.find(state="waiting", oldest_first=True)] == [(3,)]
        assert queue.select("waiting", "cancelled").purge().changed == 5


async def test_a_job_that_ends_in_another_selected_state_is_rerun_once(queue: Queue) -> None:
    attempts: list[int] = []

    @queue.task(retry=0)
    async def once(n: int) -> None:
        attempts.append(n)
        if attempts.count(n) > 1:
            raise ValueError(n)

    jobs = [await once.enqueue(n) for n in range(3)]
    async with Worker(queue):
        for job in jobs:
            await job.wait(timeout=30)
        page = Matching.page

        async def slowly(self: Matching, *given: Any) -> Any:
            for job in jobs:  # all of them have failed before the next state is read
                await queue.job(job.id).wait(timeout=30)
            return await page(self, *given)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Matching, "page", slowly)
            done = await queue.select("completed", "failed").rerun()
    assert (done.changed, sorted(attempts)) == (3, [0, 0, 1, 1, 2, 2])


async def test_a_purge_at_a_pace_leaves_a_job_alone_that_was_rerun_meanwhile(queue: Queue) -> None:
    await fail_some(queue, 2)
    began = asyncio.Event()
    purge = asyncio.create_task(
        queue.select("failed", name="*card").purge(pace=1, on_progress=lambda _: began.set())
    )
    await began.wait()  # one job is gone, and the next one follows after a second
    (rerun,) = await ids(queue, name="*card")
    assert await queue.job(rerun).rerun()
    done = await purge
    assert (done.changed, done.skipped) == (1, 1)
    assert await queue.job(rerun).state() is State.WAITING
