"""Unique jobs: debouncing, under a clock that the test moves."""

from __future__ import annotations

from jobq import Queue, State, Unique, testing


async def test_each_call_restarts_the_wait_of_a_debounced_job_which_runs_once_with_the_last() -> (
    None
):
    queue = Queue("docs", "memory://debounce")
    ran: list[tuple[str, int]] = []

    @queue.task(unique=Unique("document", mode="debounce", period=10))
    async def save(document: str, revision: int) -> None:
        ran.append((document, revision))

    async with testing.use(queue) as use:
        first = await save.enqueue("a", 1)
        assert await first.state() is State.DELAYED
        use.clock.advance(9)
        await use.drain()
        second = await save.enqueue("a", 2)
        assert (second.id, second.duplicate) == (first.id, True)
        use.clock.advance(9)
        await use.drain()
        assert ran == []
        use.clock.advance(1)
        await use.drain()
        assert ran == [("a", 2)]
        third = await save.enqueue("a", 3)
        assert not third.duplicate


async def test_a_debounced_job_with_a_delay_waits_for_the_delay() -> None:
    queue = Queue("docs", "memory://debounce-delay")
    ran: list[int] = []

    @queue.task(unique=Unique("document", mode="debounce", period=10))
    async def save(document: str, revision: int) -> None:
        ran.append(revision)

    async with testing.use(queue) as use:
        await save.options(delay=20).enqueue("a", 1)
        use.clock.advance(15)
        assert (await save.options(delay=20).enqueue("a", 2)).duplicate
        use.clock.advance(19)
        await use.drain()
        assert ran == []
        use.clock.advance(1)
        await use.drain()
        assert ran == [2]
