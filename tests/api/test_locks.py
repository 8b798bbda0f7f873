"""Unique locks by their fields: who holds one, and releasing it."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jobq import InvalidJob, Queue, State, Unique
from jobq.testing import Sandbox


async def test_a_lock_is_found_by_its_fields_only(queue: Queue) -> None:
    @queue.task(unique=Unique("invoice", "kind"))
    async def charge(tenant: str, invoice: int, kind: str = "card") -> None: ...

    job = await charge.enqueue("acme", 7)
    held = await queue.lock(charge, invoice=7).info()
    assert held
    assert (held.job_id, held.until, held.follow_up) == (job.id, None, None)
    assert held.job
    assert held.job.state is State.WAITING
    assert held.job.options.unique
    assert queue.lock(charge, "other", 7).lock == held.job.options.unique.lock
    assert await queue.lock(charge, invoice=8).info() is None
    assert await queue.lock(charge, invoice=7, kind="bank").info() is None


async def test_a_lock_of_all_arguments_needs_all_of_them(queue: Queue) -> None:
    @queue.task(unique=True)
    async def mail(to: str, copies: int = 1) -> None: ...

    await mail.enqueue("ada")
    assert await queue.lock(mail, "ada").info()
    assert await queue.lock(mail, copies=1, to="ada").info()
    with pytest.raises(InvalidJob, match="missing a required argument: 'to'"):
        queue.lock(mail, copies=1)


async def test_a_released_lock_lets_the_next_call_in(queue: Queue) -> None:
    @queue.task(unique=Unique("n"))
    async def count(n: int) -> None: ...

    first = await count.enqueue(1)
    assert (await count.enqueue(1)).duplicate
    lock = queue.lock(count, 1)
    assert not await lock.release(job_id="someone else")
    assert await queue.as_actor("ann").lock(count, 1).release(job_id=first.id)
    assert not await lock.release()
    second = await count.enqueue(1)
    assert not second.duplicate
    held = await lock.info()
    assert held
    assert held.job_id == second.id
    assert await first.state() is State.WAITING
    events = [e async for e in queue.events(after="0", follow=False) if not e.job]
    assert [(e.kind, e.reason, e.actor) for e in events] == [("released_lock", first.id, "ann")]


async def test_a_throttle_is_shown_with_its_end_though_its_job_is_gone(
    jobs: Sandbox, clocked: Queue
) -> None:
    @clocked.task(unique=Unique("user", mode="throttle", period=3600))
    async def remind(user: str) -> None: ...

    job = await remind.enqueue("ada")
    await jobs.drain()
    held = await clocked.lock(remind, "ada").info()
    assert held
    assert held.job
    assert held.job.state is State.COMPLETED
    assert held.until
    assert held.until - jobs.clock.now() <= timedelta(hours=1)
    jobs.clock.advance(3600)
    assert await clocked.lock(remind, "ada").info() is None
    assert job.id == held.job_id


async def test_the_lock_of_a_task_known_by_name_needs_its_policy(queue: Queue) -> None:
    policy = Unique("invoice")
    await queue.task_by_name("charge", unique=policy).enqueue(invoice=7, tenant="acme")
    by_name = queue.task_by_name("charge", unique=policy)
    assert await queue.lock(by_name, invoice=7).info()
    with pytest.raises(InvalidJob, match="the task is not unique"):
        queue.lock(queue.task_by_name("charge"), invoice=7)


async def test_mistakes_are_explained(queue: Queue, url: str) -> None:
    @queue.task(unique=Unique("invoice"))
    async def charge(tenant: str, invoice: int) -> None: ...

    with pytest.raises(InvalidJob, match="give invoice=, which is part of the lock"):
        queue.lock(charge, "acme")
    with pytest.raises(InvalidJob, match="did you mean 'invoice'"):
        queue.lock(charge, invoise=7)
    with pytest.raises(InvalidJob, match="give a task of the queue"):
        queue.lock("charge", invoice=7)  # type: ignore[arg-type]
    with pytest.raises(InvalidJob, match="belongs to queue 'api', not to 'other'"):
        Queue("other", url).lock(charge, invoice=7)


def test_a_lock_is_released_without_an_event_loop(url: str) -> None:
    queue = Queue("api", url)

    @queue.task(unique=Unique("n"))
    def count(n: int) -> None: ...

    with queue.sync as blocking:
        job = count.sync.enqueue(1)
        held = blocking.lock(count, 1).info()
        assert held
        assert held.job_id == job.id
        assert queue.lock(count, 1).sync.release()
        assert blocking.lock(count, n=1).info() is None
