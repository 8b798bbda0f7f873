"""What mypy --strict must reject. Each ignore names the expected error; an ignore that is not
needed is an error itself."""

from __future__ import annotations

from jobq import Cron, Every, Queue, Rate, Retry, Worker, chain, current_job, group
from jobq.encryption import Encrypted
from tests.typing.accepted import Receipt, billing, charge, email, index


async def wrong_arguments() -> None:
    await charge.enqueue("acme", "seven")  # type: ignore[arg-type]
    await charge.enqueue(7, invoice=7)  # type: ignore[arg-type]
    await charge.enqueue("acme")  # type: ignore[call-arg]
    await charge.enqueue("acme", 7, 8)  # type: ignore[call-arg]
    await charge.enqueue("acme", invoise=7)  # type: ignore[call-arg]
    await charge.call("acme", None)  # type: ignore[arg-type]
    charge.bind("acme")  # type: ignore[call-arg]
    charge.sync.enqueue("acme", "seven")  # type: ignore[arg-type]
    await charge("acme")  # type: ignore[call-arg]


async def options_are_no_arguments() -> None:
    await charge.enqueue("acme", 7, delay=5)  # type: ignore[call-arg]
    await charge.enqueue("acme", 7, priority=5)  # type: ignore[call-arg]
    email.sync.enqueue([], id="x")  # type: ignore[call-arg]


async def wrong_options() -> None:
    charge.options(dealy=5)  # type: ignore[call-arg]
    charge.options(priority="high")  # type: ignore[arg-type]
    charge.options(delay="5s")  # type: ignore[arg-type]
    charge.options(meta="trace=1")  # type: ignore[arg-type]
    charge.options(meta={"attempts": 3})  # type: ignore[dict-item]
    charge.options(executor="thread")  # type: ignore[call-arg]
    billing.task(retries=3)  # type: ignore[call-overload]
    billing.task_by_name("x", priority="high")  # type: ignore[arg-type]
    Retry("three")  # type: ignore[arg-type]
    Queue("q", mode="keyd")  # type: ignore[arg-type]


async def wrong_results() -> None:
    job = await charge.enqueue("acme", 7)
    number: int = await job.result()  # type: ignore[assignment]
    text: str = await charge.call("acme", 7)  # type: ignore[assignment]
    receipt: Receipt = email.sync.call([])  # type: ignore[assignment]
    (await job.result()).dollars  # type: ignore[attr-defined]  # noqa: B018 - mypy must object
    await charge.enqueue("acme", 7).result()  # type: ignore[attr-defined]
    print(number, text, receipt)  # noqa: T201


async def wrong_flows() -> None:
    async with billing.flow() as flow:
        paid = flow.add(charge, "acme", 1)
        flow.add(email, paid.ref)  # type: ignore[arg-type]
        flow.add(email, [charge.bind("acme", 2)])  # type: ignore[list-item]
        flow.add(charge, "acme")  # type: ignore[call-arg]


async def wrong_workers() -> None:
    Worker("billing")  # type: ignore[arg-type]
    Worker(billing, concurrency="many")  # type: ignore[arg-type]


async def wrong_children() -> None:
    job = current_job()
    await job.add(charge, "acme")  # type: ignore[call-arg]
    await job.add(charge, "acme", "seven")  # type: ignore[arg-type]
    number: int = await job.add(charge, "acme", 7)  # type: ignore[assignment]
    await job.step("charge", charge.enqueue, "acme", "seven")  # type: ignore[call-overload]
    current_job().sync.step("add", round, "acme")  # type: ignore[arg-type]
    await group("charge", [])  # type: ignore[arg-type]
    await chain(charge, "email")  # type: ignore[arg-type]
    charge.options(on_child_failure="retry")  # type: ignore[arg-type]
    print(number)  # noqa: T201


async def wrong_schedules() -> None:
    await billing.schedule("s", "0 6 * * *", charge, "acme", 7)  # type: ignore[arg-type]
    await billing.schedule("s", Every(60), charge, "acme")  # type: ignore[call-arg]
    await billing.schedule("s", Every(60), charge, "acme", "seven")  # type: ignore[arg-type]
    Cron("0 6 * * *", catch_up="some")  # type: ignore[arg-type]
    billing.task(schedule="daily")  # type: ignore[call-overload]


async def wrong_limits() -> None:
    await billing.set_limits(limit="five")  # type: ignore[arg-type]
    await billing.set_limits(rate=5)  # type: ignore[arg-type]
    Rate(100)  # type: ignore[call-arg]
    Queue("q", key_rate=100)  # type: ignore[arg-type]


async def wrong_selections() -> None:
    billing.select("failed", nme="charge")  # type: ignore[call-arg]
    billing.select("failed", error=ValueError)  # type: ignore[arg-type]
    billing.find(created_after="yesterday")  # type: ignore[arg-type]
    await billing.select("failed").rerun(pace="fast")  # type: ignore[arg-type]
    billing.lock("charge", invoice=7)  # type: ignore[arg-type]
    Encrypted(["key"])  # type: ignore[arg-type]


async def wrong_batches() -> None:
    await index.enqueue(7)  # type: ignore[arg-type]
    await index.enqueue(Receipt(1, 2), Receipt(3, 4))  # type: ignore[call-arg]
    billing.batch_task(window=1)  # type: ignore[call-arg]
