"""Flows: all jobs are stored or none, and references are replaced by results."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

import pytest

from jobq import (
    ConfigError,
    Failure,
    InvalidJob,
    Job,
    JobFailed,
    Queue,
    Reject,
    State,
    Task,
    Worker,
    testing,
)


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
        await _submit(queue, queue.task_by_name("a"), then=ZeroDivisionError())
    assert sum((await queue.counts()).values()) == 0


async def test_an_invalid_flow_stores_nothing(queue: Queue) -> None:
    a, b = queue.task_by_name("a"), queue.task_by_name("b")
    with pytest.raises(InvalidJob, match="two jobs of the flow have the id 'x'"):
        await _submit(queue, a.options(id="x"), b.options(id="x"))
    with pytest.raises(InvalidJob, match="does not exist"):
        await _submit(queue, a, b.options(after=[queue.job("nowhere")]))
    with pytest.raises(InvalidJob, match="must be in the same one"):
        await _submit(queue, a, Queue("q", "memory://elsewhere").task_by_name("b"))
    assert sum((await queue.counts()).values()) == 0


async def test_nothing_can_be_added_to_a_submitted_flow(queue: Queue) -> None:
    flow = queue.flow()
    await flow.submit()
    with pytest.raises(InvalidJob, match="was already submitted"):
        flow.add(queue.task_by_name("a"))


async def test_a_flow_with_an_id_is_submitted_once(queue: Queue) -> None:
    for _ in range(2):
        async with queue.flow(id="nightly") as flow:
            a = flow.add(queue.task_by_name("a"))
            b = flow.add(queue.task_by_name("b"), a.ref)
    assert (a.id, b.id) == ("nightly.0", "nightly.1")
    counts = await queue.counts()
    assert (counts[State.WAITING], counts[State.BLOCKED]) == (1, 1)


async def test_a_large_flow_is_stored_in_bounded_chunks(queue: Queue) -> None:
    async with queue.flow() as flow:
        children = [flow.add(queue.task_by_name("child"), n) for n in range(2500)]
        parent = flow.add(queue.task_by_name("parent"), [child.ref for child in children])
    counts = await queue.counts()
    assert (counts[State.WAITING], counts[State.BLOCKED]) == (2500, 1)
    assert await parent.state() is State.BLOCKED


async def test_a_failed_child_fails_its_parent(queue: Queue) -> None:
    @queue.task(retry=0)
    async def broken() -> int:
        raise ValueError("no")

    async with queue.flow() as flow:
        parent = flow.add(queue.task_by_name("parent"), flow.add(broken).ref)
    async with Worker(queue):
        with pytest.raises(JobFailed) as caught:
            await parent.result(timeout=10)
    assert caught.value.failure.reason == "child"


# ── what cannot be ────────────────────────────────────────────────────────────────────────────────


async def test_a_cycle_is_named_and_nothing_is_stored(queue: Queue) -> None:
    a, b, c = (queue.task_by_name(name, id=name) for name in "abc")
    with pytest.raises(
        InvalidJob, match=r"the flow has a cycle: . \(.\) waits for . \(.\) waits for . \(.\)"
    ):
        await _submit(
            queue, a.options(after=[queue.job("b")]), b.options(after=[queue.job("a")]), c
        )
    assert sum((await queue.counts()).values()) == 0


async def test_a_large_flow_that_is_refused_leaves_nothing_behind(queue: Queue) -> None:
    bad = queue.task_by_name("bad", after=[queue.job("nowhere")])
    with pytest.raises(InvalidJob, match="does not exist"):
        await _submit(queue, *[queue.task_by_name("good")] * 1500, bad)
    assert sum((await queue.counts()).values()) == 0


async def test_a_reference_outside_of_a_flow_is_refused(queue: Queue) -> None:
    job = await queue.task_by_name("a").enqueue()
    with pytest.raises(InvalidJob, match=r"result of job .* for flows only"):
        await queue.task_by_name("b").enqueue(job.ref)


async def test_a_flow_over_queues_is_refused_whole(queue: Queue, url: str) -> None:
    async with Queue("other", url) as other:
        with pytest.raises(InvalidJob, match="does not exist"):
            await _submit(
                queue,
                queue.task_by_name("a"),
                other.task_by_name("b"),
                other.task_by_name("c", after=[queue.job("nowhere")]),
            )
        assert sum((await queue.counts()).values()) + sum((await other.counts()).values()) == 0


async def test_a_flow_with_a_job_that_does_not_fit_its_queues_mode_stores_nothing(
    queue: Queue, url: str
) -> None:
    async with Queue("keyed", url, mode="keyed") as keyed:
        with pytest.raises(ConfigError, match=r"is keyed, and job .* has no key"):
            await _submit(queue, queue.task_by_name("a"), keyed.task_by_name("b"))
        assert sum((await queue.counts()).values()) == 0


# ── references and results ────────────────────────────────────────────────────────────────────────


async def test_references_work_at_any_depth_and_in_every_codec(url: str) -> None:
    async with Queue("json", url) as plain, Queue("packed", url, codec="msgpack") as packed:

        @packed.task
        async def blob(n: int) -> bytes:
            return b"\xff" * n

        @plain.task
        async def receipt(n: int) -> Receipt:
            return Receipt(n, n)

        @packed.task
        async def weigh(parts: dict[str, list[bytes]], more: dict[str, dict[str, Receipt]]) -> int:
            assert more["deep"]["er"] == Receipt(7, 7)
            return sum(len(part) for many in parts.values() for part in many)

        async with plain.flow() as flow:
            blobs = [flow.add(blob, n) for n in (1, 2, 3)]
            job = flow.add(
                weigh,
                {"a": [blobs[0].ref, blobs[1].ref], "b": [blobs[2].ref, blobs[0].ref]},
                more={"deep": {"er": flow.add(receipt, 7).ref}},
            )
        async with Worker(plain, packed):
            assert await job.result(timeout=10) == 7


async def test_an_edge_may_lead_to_a_job_outside_of_the_flow(queue: Queue) -> None:
    @queue.task
    async def number(n: int) -> int:
        return n

    async with Worker(queue):
        before = await number.enqueue(5)
        await before.result(timeout=10)
        async with queue.flow() as flow:
            job = flow.add(number, before.ref)
        assert await job.result(timeout=10) == 5


async def test_an_id_already_stored_becomes_an_edge_to_that_job(queue: Queue) -> None:
    runs: list[int] = []

    @queue.task
    async def load(n: int) -> int:
        runs.append(n)
        return n

    await load.options(id="shared").enqueue(1)
    async with queue.flow() as flow:
        shared = flow.add(load.options(id="shared"), 2)
        job = flow.add(load, shared.ref)
    assert shared.duplicate
    async with Worker(queue):
        assert await job.result(timeout=10) == 1
    assert runs == [1, 1]


async def test_a_member_whose_unique_lock_is_held_is_replaced_by_the_holder(queue: Queue) -> None:
    @queue.task(unique=True)
    async def load(n: int) -> int:
        return n

    holder = await load.enqueue(1)
    async with queue.flow() as flow:
        member = flow.add(load, 1)
        job = flow.add(load, member.ref)
    assert (member.id, member.duplicate) == (holder.id, True)
    async with Worker(queue):
        assert await job.result(timeout=10) == 1


# ── failures and cancels ──────────────────────────────────────────────────────────────────────────


class Mixed:
    """A flow with one good and one bad child below a parent of some policy."""

    def __init__(self, queue: Queue) -> None:
        @queue.task
        async def good() -> Receipt:
            return Receipt(1, 1)

        @queue.task
        async def bad() -> Receipt:
            raise Reject("no")

        @queue.task
        async def parent(parts: list[Receipt | Failure | None]) -> list[str]:
            return [type(part).__name__ for part in parts]

        self.good, self.bad, self.parent = good, bad, parent

    async def submit(
        self, queue: Queue, policy: Literal["fail", "ignore", "continue"]
    ) -> Job[list[str]]:
        async with queue.flow() as flow:
            children = [flow.add(self.good), flow.add(self.bad)]
            return flow.add(
                self.parent.options(on_child_failure=policy), [child.ref for child in children]
            )


async def test_the_policy_for_a_failed_child_is_the_parents(queue: Queue) -> None:
    mixed = Mixed(queue)
    async with Worker(queue):
        assert await (await mixed.submit(queue, "ignore")).result(timeout=10) == [
            "Receipt",
            "NoneType",
        ]
        assert await (await mixed.submit(queue, "continue")).result(timeout=10) == [
            "Receipt",
            "Failure",
        ]
        with pytest.raises(JobFailed, match="which this job waits for, failed: no"):
            await (await mixed.submit(queue, "fail")).result(timeout=10)


async def test_cancelling_a_parent_cascades_on_request(queue: Queue) -> None:
    async def submit() -> tuple[Job[Any], Job[Any]]:
        async with queue.flow() as flow:
            child = flow.add(queue.task_by_name("child"))
            return child, flow.add(queue.task_by_name("parent"), child.ref)

    child, parent = await submit()
    assert await parent.cancel()
    assert await child.state() is State.WAITING
    child, parent = await submit()
    assert await parent.cancel(cascade=True)
    assert (await child.state(), await parent.state()) == (State.CANCELLED, State.CANCELLED)


POLICIES: tuple[tuple[Literal["fail", "ignore"], State], ...] = (
    ("fail", State.FAILED),
    ("ignore", State.WAITING),
)


async def test_cancelling_or_removing_the_last_open_child_settles_the_parent_by_its_policy(
    queue: Queue,
) -> None:
    for act in (Job.cancel, Job.remove):
        for policy, state in POLICIES:
            async with queue.flow() as flow:
                child = flow.add(queue.task_by_name("child"))
                parent = flow.add(queue.task_by_name("parent", on_child_failure=policy), child.ref)
            assert await act(child)
            assert await parent.state() is state


async def test_the_delay_of_a_job_begins_when_the_jobs_it_waits_for_have_ended(
    jobs: testing.Sandbox, clocked: Queue
) -> None:
    @clocked.task
    async def step() -> None: ...

    async with clocked.flow() as flow:
        first = flow.add(step.options(delay=60))
        second = flow.add(step.options(delay=10, after=[first]))
    jobs.clock.advance(60)
    assert await jobs.drain() == 1
    assert (await second.info()).due_at == jobs.clock.now() + timedelta(seconds=10)


async def test_a_call_instead_of_a_task_is_refused(queue: Queue) -> None:
    task = queue.task_by_name("work")
    for wrong in (task.bind(1), "work", None):
        with pytest.raises(InvalidJob, match=r"give the task, then its arguments"):
            queue.flow().add(wrong)  # type: ignore[arg-type]


def test_flows_have_a_blocking_api() -> None:
    shop = Queue("shop", "memory://nowhere")

    @shop.task
    def double(n: int) -> int:
        return 2 * n

    with testing.use(shop) as jobs:
        with shop.sync.flow(id="f") as flow:
            first = flow.add(double, 1)
            second = flow.add(double, first.ref)
        assert (first.id, second.id) == ("f.0", "f.1")
        assert jobs.sync.drain() == 2
        assert second.result() == 4
        assert [node.id for node in shop.sync.flow_tree("f.1")] == ["f.1", "f.0"]
