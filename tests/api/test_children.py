"""Jobs that add children while they run, wait for them, and start over with their results."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from jobq import (
    Failure,
    JobCancelled,
    JobFailed,
    Queue,
    Reject,
    Retry,
    Snooze,
    State,
    Unique,
    Worker,
    current_job,
    testing,
)
from tests.waiting import forever


@dataclass
class Page:
    number: int
    words: int


class Book:
    """A task that adds a child per page and waits for them, and how often each was run."""

    def __init__(self, queue: Queue) -> None:
        self.runs: Counter[str] = Counter()
        self.results: list[Mapping[str, Any]] = []

        @queue.task(retry=Retry(1, base=0))
        async def count(page: int) -> Page:
            self.runs["page"] += 1
            if page < 0:
                raise Reject("no such page")
            return Page(page, 100 * page)

        @queue.task(retry=0)
        async def book(pages: list[int]) -> int:
            self.runs["book"] += 1
            job = current_job()
            for page in pages:
                await job.add(count, page)
            results = await job.wait_for_children()
            self.results.append(results)
            return sum(page.words for page in results.values() if isinstance(page, Page))

        self.count, self.book = count, book


@pytest.fixture
def book(queue: Queue) -> Book:
    return Book(queue)


async def test_a_job_waits_for_children_it_adds_and_begins_again_with_their_results(
    queue: Queue, book: Book
) -> None:
    job = await book.book.enqueue([1, 2, 3])
    async with Worker(queue):
        assert await job.result(timeout=10) == 600
    assert book.runs == {"book": 2, "page": 3}
    assert book.results == [{f"{job.id}:{n}": Page(n + 1, 100 * (n + 1)) for n in range(3)}]
    info = await job.info()
    assert (info.attempt, info.failures, info.stalls) == (2, 0, 0)
    assert [child.id for child in info.children] == [f"{job.id}:{n}" for n in range(3)]


async def test_while_it_waits_it_is_blocked_and_holds_no_slot(queue: Queue, book: Book) -> None:
    job = await book.book.enqueue([1, 2, 3])
    async with Worker(queue, concurrency=1):  # the children run in the slot it has left
        assert await job.result(timeout=10) == 600
    kinds = [event.kind async for event in _events(queue, job.id)]
    assert kinds == ["accepted", "started", "blocked", "unblocked", "started", "completed"]


async def _events(queue: Queue, id: str) -> Any:
    async for event in queue.events(after="0"):
        if event.job == id:
            yield event
            if event.state is not None and event.state.ended:
                return


async def test_a_job_that_waits_does_not_block_its_key(url: str) -> None:
    async with Queue("keyed", url, mode="keyed", key_limit=1) as queue:

        @queue.task(key="key")
        async def child(key: str) -> str:
            return key

        @queue.task(key="key")
        async def parent(key: str) -> list[str]:
            await current_job().add(child, key)
            return list((await current_job().wait_for_children()).values())

        async with Worker(queue):
            assert await parent.call("k") == ["k"]


async def test_waiting_for_no_children_returns_at_once(queue: Queue, book: Book) -> None:
    async with Worker(queue):
        assert await book.book.call([]) == 0
    assert book.runs == {"book": 1}


async def test_children_can_be_added_in_rounds(queue: Queue) -> None:
    passes: list[int] = []

    @queue.task
    async def double(n: int) -> int:
        return 2 * n

    @queue.task
    async def rounds(n: int) -> int:
        job = current_job()
        passes.append(job.attempt)
        first = await job.add(double, n)
        second = await job.add(double, (await job.wait_for_children())[first.id])
        return int((await job.wait_for_children())[second.id])

    async with Worker(queue):
        assert await rounds.call(3) == 12
    assert passes == [1, 2, 3]
    assert (await queue.counts())[State.COMPLETED] == 3


async def test_a_childs_argument_can_be_another_childs_result(queue: Queue) -> None:
    @queue.task
    async def one() -> int:
        return 1

    @queue.task
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    @queue.task
    async def parent() -> int:
        job = current_job()
        ones = [await job.add(one) for _ in range(3)]
        last = await job.add(total, [each.ref for each in ones])
        return int((await job.wait_for_children())[last.id])

    async with Worker(queue):
        assert await parent.call() == 3


async def test_children_may_be_in_other_queues(queue: Queue, url: str) -> None:
    async with Queue("other", url) as other:

        @other.task
        async def there() -> str:
            return current_job().queue

        @queue.task
        async def here() -> dict[str, str]:
            await current_job().add(there)
            return dict(await current_job().wait_for_children())

        job = await here.enqueue()
        async with Worker(queue, other):
            assert await job.result(timeout=10) == {f"api/{job.id}:0": "other"}


async def test_a_child_of_another_store_or_tenant_is_refused(queue: Queue, url: str) -> None:
    async with (
        Queue("api", f"memory://elsewhere-{id(queue)}") as elsewhere,
        Queue("api", url, tenant="theirs") as theirs,
    ):

        @queue.task(retry=0)
        async def parent(which: int) -> None:
            await current_job().add((elsewhere, theirs)[which].task_by_name("child"))

        async with Worker(queue):
            for which in (0, 1):
                with pytest.raises(JobFailed, match="in another store or tenant than job"):
                    await parent.call(which)
        assert sum((await elsewhere.counts()).values()) == 0


async def test_plain_functions_have_children_too(queue: Queue) -> None:
    @queue.task
    def double(n: int) -> int:
        return 2 * n

    @queue.task
    def parent(n: int) -> int:
        job = current_job().sync
        for each in range(n):
            job.add(double, each)
        return sum(job.wait_for_children().values())

    async with Worker(queue):
        assert await parent.call(4) == 12


async def test_many_children_are_stored_together(queue: Queue) -> None:
    @queue.task
    async def child(n: int) -> int:
        return n

    @queue.task
    async def parent(n: int) -> int:
        job = current_job()
        await asyncio.gather(*(job.add(child, each) for each in range(n)))
        return sum((await job.wait_for_children()).values())

    async with Worker(queue):
        assert await parent.options(call_timeout=60).call(500) == sum(range(500))


# ── failures ──────────────────────────────────────────────────────────────────────────────────────


async def test_by_default_a_failed_child_fails_the_job_that_waits_for_it(
    queue: Queue, book: Book
) -> None:
    job = await book.book.enqueue([1, -1])
    async with Worker(queue):
        with pytest.raises(JobFailed, match="no such page") as caught:
            await job.result(timeout=10)
    assert caught.value.failure.reason == "child"
    assert book.runs["book"] == 1


async def test_it_may_ignore_failed_children_or_see_their_failures(
    queue: Queue, book: Book
) -> None:
    async with Worker(queue):
        ignoring = await book.book.options(on_child_failure="ignore").enqueue([1, -1])
        assert await ignoring.result(timeout=10) == 100
        seeing = await book.book.options(on_child_failure="continue").enqueue([2, -1])
        assert await seeing.result(timeout=10) == 200
    assert book.results[0][f"{ignoring.id}:1"] is None
    failure = book.results[1][f"{seeing.id}:1"]
    assert isinstance(failure, Failure)
    assert "no such page" in failure.message


async def test_a_rerun_begins_with_children_of_its_own(queue: Queue, book: Book) -> None:
    job = await book.book.enqueue([1, -1])
    async with Worker(queue):
        await job.wait(timeout=10)
        assert await job.rerun()
        await job.wait(timeout=10)
    assert book.runs["page"] == 4
    assert (await queue.job(f"{job.id}~1:0").info()).state is State.COMPLETED


async def test_a_run_that_fails_after_its_wait_adds_nothing_when_it_is_retried(
    queue: Queue,
) -> None:
    runs: Counter[str] = Counter()

    @queue.task
    async def child() -> int:
        runs["child"] += 1
        return 1

    @queue.task(retry=Retry(2, base=0))
    async def parent() -> int:
        runs["parent"] += 1
        await current_job().add(child)
        results = await current_job().wait_for_children()
        if runs["parent"] < 4:
            raise ValueError("again")
        return sum(results.values())

    async with Worker(queue):
        assert await parent.call() == 1
    assert runs == {"parent": 4, "child": 1}


async def test_a_child_that_finds_its_unique_lock_held_is_the_holder_in_every_pass(
    queue: Queue,
) -> None:
    runs: Counter[str] = Counter()

    @queue.task(unique=Unique("what"))
    async def shared(what: str) -> str:
        runs["shared"] += 1
        return what

    @queue.task
    async def parent() -> list[str]:
        runs["parent"] += 1
        await current_job().add(shared, "x")
        return [*(await current_job().wait_for_children())]

    holder = await shared.options(delay=3600).enqueue("x")
    async with Worker(queue):
        waiting = await parent.enqueue()
        async for event in queue.events(after="0"):
            if event.kind == "blocked":
                break
        await holder.promote()
        assert await waiting.result(timeout=10) == [holder.id]
    assert runs == {"parent": 2, "shared": 1}


async def test_cancelling_cascades_to_children_that_are_waited_for(queue: Queue) -> None:
    @queue.task
    async def parent() -> None:
        await current_job().add(queue.task_by_name("nobody", delay=3600))
        await current_job().wait_for_children()

    job = await parent.enqueue()
    async with Worker(queue):
        async for event in queue.events(after="0"):
            if event.kind == "blocked":
                break
        assert await job.cancel(cascade=True)
        with pytest.raises(JobCancelled):
            await job.result(timeout=10)
    assert await queue.job(f"{job.id}:0").state() is State.CANCELLED


async def test_cancelling_cascades_to_children_that_are_not_waited_for_yet(queue: Queue) -> None:
    added = asyncio.Event()

    @queue.task
    async def parent() -> None:
        for _ in range(3):
            await current_job().add(queue.task_by_name("nobody", delay=3600))
        added.set()
        await forever()

    job = await parent.enqueue()
    async with Worker(queue), asyncio.timeout(10):
        await added.wait()
        assert await job.cancel(cascade=True)
        with pytest.raises(JobCancelled):
            await job.result()
    assert [await queue.job(f"{job.id}:{n}").state() for n in range(3)] == [State.CANCELLED] * 3


async def test_a_saved_value_survives_a_wait(jobs: testing.Sandbox, clocked: Queue) -> None:
    seen: list[Any] = []

    @clocked.task
    async def child() -> None: ...

    @clocked.task
    async def parent() -> None:
        job = current_job()
        seen.append(job.saved)
        if job.saved is None:
            raise Snooze(10, saved={"step": 1})
        await job.add(child)
        await job.wait_for_children()

    await parent.enqueue()
    await jobs.drain(delayed=True)
    assert seen == [None, {"step": 1}, {"step": 1}]


async def test_children_with_the_same_given_id_are_one_job(queue: Queue) -> None:
    @queue.task
    async def child() -> str:
        return "shared"

    @queue.task
    async def parent() -> dict[str, str]:
        await current_job().add(child.options(id="mine"))
        return dict(await current_job().wait_for_children())

    async with Worker(queue):
        assert await parent.call() == {"mine": "shared"}
        assert await parent.call() == {"mine": "shared"}
    assert len([job async for job in queue.find(name="child")]) == 1


async def test_two_children_of_one_id_are_refused(queue: Queue) -> None:
    @queue.task(retry=0)
    async def parent() -> None:
        for _ in range(2):
            await current_job().add(queue.task_by_name("nobody", id="same", delay=60))

    async with Worker(queue):
        with pytest.raises(JobFailed, match="two children with the id 'same'"):
            await parent.call()
