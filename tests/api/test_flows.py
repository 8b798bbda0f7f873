"""Flows from the user's side: whole or not at all, and results where references stood."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from jobq import InvalidJob, JobFailed, Queue, State, Task, Worker


@dataclass
class Receipt:
    invoice: int
    cents: int


async def test_an_argument_can_be_another_jobs_result(queue: Queue, url: str) -> None:
    async with Queue("mail", url) as mail:

        @queue.task
        async def charge(tenant: str, invoice: int) -> Receipt:
            return Receipt(invoice, 100 * invoice)

        @mail.task
        def email(receipts: list[Receipt], *, first: Receipt) -> int:
            assert first == receipts[0]
            return sum(receipt.cents for receipt in receipts)

        async with queue.flow() as flow:
            paid = [flow.add(charge, "acme", n) for n in (10, 11)]
            sent = flow.add(email, [p.ref for p in paid], first=paid[0].ref)
        assert await sent.state() is State.BLOCKED
        assert {child.id for child in (await sent.info()).children} == {job.id for job in paid}
        async with Worker(queue, mail):
            assert await sent.result(timeout=10) == 2100
            assert await paid[1].result(timeout=10) == Receipt(11, 1100)


async def test_jobs_can_wait_without_taking_results(queue: Queue) -> None:
    order: list[str] = []

    @queue.task
    async def step(name: str) -> None:
        order.append(name)

    async with queue.flow() as flow:
        first = flow.add(step, "first")
        second = flow.add(step.options(after=[first]), "second")
    outside = await step.options(after=[second]).enqueue("outside")
    async with Worker(queue):
        await outside.wait(timeout=10)
    assert order == ["first", "second", "outside"]


async def _submit(queue: Queue, *tasks: Task[..., Any], then: Exception | None = None) -> None:
    async with queue.flow() as flow:
        for task in tasks:
            flow.add(task)
        if then is not None:
            raise then


async def test_an_error_inside_the_context_stores_nothing(queue: Queue) -> None:
    with pytest.raises(ZeroDivisionError):
        await _submit(queue, queue.named("a"), then=ZeroDivisionError())
    assert sum((await queue.counts()).values()) == 0


async def test_what_does_not_fit_together_is_refused_whole(queue: Queue) -> None:
    a, b = queue.named("a"), queue.named("b")
    with pytest.raises(InvalidJob, match="two jobs of the flow have the id 'x'"):
        await _submit(queue, a.options(id="x"), b.options(id="x"))
    with pytest.raises(InvalidJob, match="does not exist"):
        await _submit(queue, a, b.options(after=[queue.job("nowhere")]))
    with pytest.raises(InvalidJob, match="lives in one"):
        await _submit(queue, a, Queue("q", "memory://elsewhere").named("b"))
    assert sum((await queue.counts()).values()) == 0


async def test_nothing_can_be_added_to_a_submitted_flow(queue: Queue) -> None:
    flow = queue.flow()
    await flow.submit()
    with pytest.raises(InvalidJob, match="is submitted"):
        flow.add(queue.named("a"))


async def test_a_flow_with_an_id_is_submitted_once(queue: Queue) -> None:
    for _ in range(2):
        async with queue.flow(id="nightly") as flow:
            a = flow.add(queue.named("a"))
            b = flow.add(queue.named("b"), a.ref)
    assert (a.id, b.id) == ("nightly.0", "nightly.1")
    counts = await queue.counts()
    assert (counts[State.WAITING], counts[State.BLOCKED]) == (1, 1)


async def test_a_large_flow_goes_in_bounded_lots(queue: Queue) -> None:
    async with queue.flow() as flow:
        children = [flow.add(queue.named("child"), n) for n in range(2500)]
        parent = flow.add(queue.named("parent"), [child.ref for child in children])
    counts = await queue.counts()
    assert (counts[State.WAITING], counts[State.BLOCKED]) == (2500, 1)
    assert await parent.state() is State.BLOCKED


async def test_a_failed_child_fails_its_parent(queue: Queue) -> None:
    @queue.task(retry=0)
    async def broken() -> int:
        raise ValueError("no")

    async with queue.flow() as flow:
        parent = flow.add(queue.named("parent"), flow.add(broken).ref)
    async with Worker(queue):
        with pytest.raises(JobFailed) as caught:
            await parent.result(timeout=10)
    assert caught.value.failure.reason == "child"
