"""Tasks that are declared apart from their queue, and bound later."""

from __future__ import annotations

from typing import Any

import pytest

from jobq import ConfigError, Depends, Every, Queue, Tasks, chain, current_job, testing


def word() -> str:
    return "word"


async def test_a_task_is_bound_by_including_it(jobs: testing.Sandbox, clocked: Queue) -> None:
    tasks = Tasks()

    @tasks.task(priority=3, retry=1)
    async def charge(n: int, text: str = Depends(word)) -> str:
        return f"{n} {text} in {current_job().queue}"

    @tasks.task
    def plain(text: str) -> str:
        return text.upper()

    @tasks.batch_task(size=2)
    async def together(items: list[int]) -> list[int]:
        return items

    clocked.include(tasks)

    @tasks.task
    async def declared_later() -> int:
        return 5

    first = await charge.enqueue(1)
    last = await chain(charge, plain, first=(2,))
    batched = await together.enqueue(7)
    later = await declared_later.options(delay=1).enqueue()
    await jobs.drain(delayed=True)
    assert (await first.info()).priority == 3
    assert await first.result() == "1 word in api"
    assert await last.result() == "2 WORD IN API"
    assert (await batched.result(), await later.result()) == (7, 5)
    assert clocked.tasks["charge"].retry.max_retries == 1


async def test_a_task_without_a_queue_can_be_called_and_says_what_is_missing() -> None:
    tasks = Tasks()

    @tasks.task
    async def charge(n: int) -> int:
        return n

    assert await charge(3) == 3
    assert repr(charge) == "<AsyncTask charge without a queue>"
    for use in (
        lambda: charge.options(delay=1),
        lambda: charge.bind(1),
        lambda: charge.queue,
        lambda: Queue("x", "memory://x").flow().add(charge, 1),
    ):
        with pytest.raises(ConfigError, match=r"has no queue yet: call queue.include\(tasks\)"):
            use()
    with pytest.raises(ConfigError, match="has no queue yet"):
        await charge.enqueue(1)
    with pytest.raises(AttributeError, match="nothing"):
        charge.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_tasks_belong_to_one_queue_and_an_application_may_be_made_again() -> None:
    tasks = Tasks()

    @tasks.task
    async def charge() -> None: ...

    Queue("one", "memory://a").include(tasks)
    Queue("one", "memory://b").include(tasks)
    assert charge.queue == "one"
    with pytest.raises(ConfigError, match="<Tasks charge> belong to queue 'one' already"):
        Queue("two", "memory://a").include(tasks)
    wrong: Any = [charge]
    with pytest.raises(ConfigError, match="give it a Tasks object"):
        Queue("two").include(wrong)


async def test_the_schedule_of_a_task_passes_the_enqueue_middleware(url: str) -> None:
    async def stamped(request: Any, call_next: Any) -> Any:
        request.meta["via"] = request.via
        return await call_next(request)

    seen: list[str] = []
    queue = Queue("api", url, enqueue_middleware=[stamped])

    @queue.task(schedule=Every(60))
    async def tick() -> None:
        seen.append(current_job().meta["via"])

    async with testing.Sandbox((queue,), testing.FakeClock(), url) as jobs, queue:
        await jobs.drain()
        jobs.clock.advance(60)
        await jobs.drain()
    assert seen == ["schedule"]
