"""Failed jobs stay in their queue and are copied to a dead-letter queue. Also: broadcasts."""

from __future__ import annotations

import pytest

from jobq import ConfigError, InvalidJob, Queue, Reject, State, Worker, current_job


async def test_a_failed_job_is_copied_and_the_copy_names_its_origin(url: str) -> None:
    async with (
        Queue("orders", url, dead_letters="graves") as orders,
        Queue("graves", url) as graves,
    ):

        @orders.task
        async def ship(order: int) -> None:
            raise Reject("no such order")

        async with Worker(orders):
            job = await ship.enqueue(7)
            await job.wait(timeout=10)
        assert await job.state() is State.FAILED
        (copy,) = [info async for info in graves.find()]
        assert (copy.name, copy.args, copy.origin, copy.state) == (
            "ship",
            (7,),
            f"orders/{job.id}",
            State.WAITING,
        )
        assert copy.id == f"orders/{job.id}/0"


async def test_a_worker_of_the_dead_letter_queue_runs_the_copies(url: str) -> None:
    async with (
        Queue("orders", url, dead_letters="graves") as orders,
        Queue("graves", url) as graves,
    ):

        @orders.task(retry=0)
        async def ship(order: int) -> None:
            raise ValueError("no")

        @graves.task(name="ship")
        async def bury(order: int) -> str:
            return f"{current_job().id.partition('/')[0]} {order}"

        async with Worker(orders, graves):
            job = await ship.enqueue(7)
            async for event in graves.events(
                after="0"
            ):  # where queues are apart, the letter is there a moment after the end
                if event.kind == "completed":
                    break
            assert await graves.job(f"orders/{job.id}/0").result(timeout=10) == "orders 7"


async def test_each_life_that_fails_leaves_its_own_copy(url: str) -> None:
    async with (
        Queue("orders", url, dead_letters="graves") as orders,
        Queue("graves", url) as graves,
    ):

        @orders.task
        async def ship() -> None:
            raise Reject("no")

        async with Worker(orders):
            job = await ship.enqueue()
            await job.wait(timeout=10)
            await job.rerun()
            await job.wait(timeout=10)
        assert (await graves.counts())[State.WAITING] == 2


def test_the_name_of_the_dead_letter_queue_is_checked() -> None:
    with pytest.raises(ConfigError, match="dead_letters=''"):
        Queue("orders", "memory://", dead_letters="")


# ── broadcast ─────────────────────────────────────────────────────────────────────────────────────


async def test_a_call_can_go_to_several_queues(url: str) -> None:
    async with Queue("news", url) as news, Queue("mail", url) as mail, Queue("audit", url) as audit:

        @news.task
        async def published(article: int) -> str:
            return "news"

        @mail.task(name="published")
        async def send(article: int) -> str:
            return f"mail {article}"

        @audit.task(name="published")
        def note(article: int) -> str:
            return f"audit {article}"

        jobs = await published.options(priority=3).broadcast([mail, audit], 7)
        assert [(job.queue, (await job.info()).priority) for job in jobs] == [
            ("mail", 3),
            ("audit", 3),
        ]
        async with Worker(mail, audit):
            assert [await job.result(timeout=10) for job in jobs] == ["mail 7", "audit 7"]
        assert sum((await news.counts()).values()) == 0


async def test_a_broadcast_with_an_invalid_call_stores_nothing(url: str) -> None:
    async with Queue("a", url) as a, Queue("b", url, max_payload=10) as b:

        @a.task
        async def published(text: str) -> None: ...

        with pytest.raises(InvalidJob, match="more than the 10 allowed"):
            await published.broadcast([a, b], "a long text")
        assert sum((await a.counts()).values()) == 0


async def test_a_broadcast_with_an_id_is_the_same_message_when_repeated(url: str) -> None:
    async with Queue("a", url) as a, Queue("b", url) as b:
        task = a.task_by_name("published", id="article-7")
        first = await task.broadcast([a, b])
        again = await task.broadcast([a, b])
        assert [job.duplicate for job in first] == [False, False]
        assert [job.duplicate for job in again] == [True, True]
