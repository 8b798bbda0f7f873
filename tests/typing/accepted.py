"""What users write, as in the design: mypy --strict accepts all of it, and knows every type."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, assert_type

from jobq import (
    BatchTask,
    Bucket,
    BulkProgress,
    Cron,
    Event,
    Every,
    Failure,
    FlowTree,
    Job,
    JobCriteria,
    JobInfo,
    JobUpdate,
    LockInfo,
    PlainTask,
    Preview,
    Queue,
    QueueFull,
    QueueLimits,
    Rate,
    Retry,
    ScheduleInfo,
    Selection,
    Snooze,
    State,
    SyncJob,
    Task,
    Unique,
    Worker,
    chain,
    chord,
    current_job,
    group,
    testing,
)
from jobq.encryption import Encrypted, new_key
from jobq.http import Reply, error_reply, job_events, job_reply, sync_job_reply

billing = Queue("billing", "valkey://localhost:6379")  # default: JQ_URL, else sqlite:///jobq.db


@dataclass
class Receipt:
    invoice: int
    cents: int


@billing.task(
    retry=Retry(8, base=1, cap=300, jitter=0.2), timeout=30, unique=Unique("invoice"), key="tenant"
)
async def charge(tenant: str, invoice: int) -> Receipt:
    if invoice < 0:
        raise Retry.after(30)
    await current_job().progress({"at": 1})
    return Receipt(invoice, 100)


@billing.task(schedule=Cron("0 6 * * *", tz="Europe/Zurich"))
def digest() -> None:
    current_job().sync.log("six o'clock")
    raise Snooze(60, saved={"page": 2})


@billing.task
def email(receipts: list[Receipt], *, subject: str = "") -> int:
    return len(receipts)


async def main() -> None:
    async with billing:
        job = await charge.enqueue("acme", invoice=7)
        job = await charge.options(id="inv-8", delay=timedelta(hours=1), priority=5).enqueue(
            "acme", 8
        )
        receipt = await charge.options(call_timeout=30).call("acme", 9)
        jobs = await charge.enqueue_many([("acme", n) for n in range(10_000)])
        async with billing.flow() as flow:
            paid = [flow.add(charge, "acme", n) for n in (10, 11)]
            sent = flow.add(email, [p.ref for p in paid])
        await job.result(timeout=30)
        await job.cancel()
        await billing.pause()
        await Worker(billing, concurrency=100).run()

    assert_type(job, Job[Receipt])
    assert_type(receipt, Receipt)
    assert_type(jobs, list[Job[Receipt]])
    assert_type(sent, Job[int])
    assert_type(await sent.result(), int)
    assert_type(job.duplicate, bool)
    assert_type(await job.info(), JobInfo)
    assert_type(await job.state(), State)


async def following(job: Job[Receipt]) -> None:
    async for update in job.follow(timeout=30, repeat_after=timedelta(seconds=15)):
        assert_type(update, JobUpdate)
        assert_type((update.state, update.lines, update.ended), tuple[State, tuple[str, ...], bool])
    for update in job.sync.follow():
        assert_type(update.info, JobInfo)
    assert_type(await job_reply(job, timeout=10, location="/jobs/7"), Reply)
    assert_type(sync_job_reply(job.sync), Reply)
    assert_type(error_reply(QueueFull()).status, int)
    async for frame in await job_events(job):
        assert_type(frame, bytes)
    with testing.fake_job(attempt=2) as fake:
        assert_type(fake.lines, list[str])


async def calling() -> None:
    assert_type(await charge("acme", 7), Receipt)
    assert_type(email([Receipt(1, 2)], subject="hi"), int)
    plain: PlainTask[..., int] = email
    any_task: Task[..., Any] = charge
    assert_type(await plain.call([]), int)
    await any_task.enqueue(1, 2, 3)


async def operating() -> None:
    try:
        many = await billing.enqueue_many(
            [charge.bind("acme", 1), email.options(priority=3).bind([])]
        )
    except QueueFull as full:
        assert_type(full.accepted, list[Job[Any]])
        assert_type((full.queue, full.max_waiting, full.refused), tuple[str, int, int])
        raise
    await billing.set_limits(max_waiting=100)
    assert_type((await billing.limits()).max_waiting, int | None)
    await billing.hold(timedelta(minutes=5))
    await billing.hold(30, key="acme")
    assert_type(await billing.release_hold(key="acme"), bool)
    assert_type((await billing.limits()).held_keys, Mapping[str, datetime])
    assert_type((await billing.stats()).held_until, datetime | None)
    assert_type(billing.sync.release_hold(), bool)
    assert_type(many, list[Job[Any]])
    assert_type(await billing.counts(), dict[State, int])
    async for info in billing.find(state="failed", max_jobs=10):
        assert_type(info, JobInfo)
        assert_type(info.kwargs, Mapping[str, Any])
        assert_type(info.meta, Mapping[str, str])
        assert_type(info.errors, tuple[Failure, ...])
        assert_type(info.options.retry, Retry | Literal["worker"])
        assert_type(info.options.timeout, timedelta | Literal["worker"] | None)
        assert_type(
            [(error.worker, error.exhausted) for error in info.errors],
            list[tuple[str | None, bool]],
        )
    async for event in billing.events(after="0"):
        assert_type(event, Event)
        assert_type(event.meta, Mapping[str, str])
    await billing.task_by_name("elsewhere", delay=5, meta={"trace": "t1"}).enqueue(
        "anything", at="all"
    )
    Queue("traced", event_meta=("trace",))
    assert_type(await billing.job("x").result(), Any)
    assert_type(charge.queue, str)


async def removing() -> None:
    assert_type(await billing.remove("inv-8", "inv-9"), int)
    assert_type(await billing.purge(), int)
    assert_type(await billing.purge("completed", State.FAILED, name="charge", max_jobs=9), int)
    assert_type(await billing.purge("completed", older_than=timedelta(days=7)), int)
    assert_type(billing.sync.remove("inv-8"), int)
    assert_type(billing.sync.purge("waiting", "delayed", "blocked"), int)
    await billing.obliterate(force=True)


def renamed() -> None:
    assert_type(Rate(count=5, per=1).count, int)
    assert_type(Cron("@daily", times=3).times, int | None)
    assert_type(Every(60, times=3).times, int | None)
    assert_type(Unique("invoice", period=60).period_ms, int | None)
    assert_type([minute.latency for minute in billing.sync.metrics()], list[timedelta])
    assert_type([schedule.times for schedule in billing.sync.schedules()], list[int | None])
    assert_type(billing.sync.flow_tree("x", max_jobs=5), FlowTree)


def blocking() -> None:
    job = charge.sync.enqueue("acme", invoice=7)
    assert_type(job, SyncJob[Receipt])
    assert_type(job.result(timeout=5), Receipt)
    assert_type(charge.sync.options(call_timeout=5).call("acme", 7), Receipt)
    assert_type(charge.sync.enqueue_many([("acme", 1)]), list[SyncJob[Receipt]])
    with billing.sync as queue:
        assert_type(queue.counts(), dict[State, int])
    with testing.use(billing) as jobs:
        assert_type(jobs.sync.drain(), int)
        jobs.sync.assert_enqueued(charge, "acme", 7)


# ── flows, schedules, limits, batches ─────────────────────────────────────────────────────────────


@billing.task
async def report(pages: int) -> int:
    job = current_job()
    assert_type((job.created_at, job.failures, job.max_retries), tuple[datetime, int, int])
    assert_type(job.meta, Mapping[str, str])
    children = [await job.add(charge, "acme", invoice=n) for n in range(pages)]
    assert_type(children, list[Job[Receipt]])
    results = await job.wait_for_children()
    assert_type(results, Mapping[str, Any])
    if await job.wait_for_signal("approve", timeout=60):
        await job.add(email.options(priority=5), [child.ref for child in children], subject="hi")
    return len(results)


@billing.task
def report_in_a_thread() -> None:
    job = current_job().sync
    assert_type(job.add(charge, "acme", 7), Job[Receipt])
    assert_type(job.wait_for_children(), Mapping[str, Any])
    job.wait_for_signal("approve")


async def pay(tenant: str, *, cents: int) -> Receipt:
    return Receipt(invoice=1, cents=cents)


def pay_now(tenant: str, name: str) -> int:
    return len(tenant + name)


@billing.task
async def order(pages: int) -> int:
    job = current_job()
    assert_type(await job.step("pay", pay, "acme", cents=7), Receipt)
    assert_type(await job.step("pay now", pay_now, "acme", name="ada"), int)
    assert_type(await job.step("charge", charge, "acme", 7), Receipt)
    await job.save({"page": pages})
    return pages


@billing.task
def order_in_a_thread() -> int:
    job = current_job().sync
    job.save(7)
    return job.step("pay now", pay_now, "acme", name="ada")


@billing.batch_task(size=100, window=0.5, retry=3)
async def index(receipts: list[Receipt]) -> list[int | Exception]:
    return [receipt.cents or ValueError("nothing") for receipt in receipts]


@billing.batch_task(size=10)
def index_in_a_thread(numbers: list[int]) -> list[int]:
    return numbers


async def selections() -> None:
    selection = billing.select("failed", State.CANCELLED, name="charge*", meta={"tenant": "acme"})
    assert_type(selection, Selection)
    assert_type(await selection.preview(samples=2), Preview)
    assert_type(await selection.rerun(pace=50, max_jobs=10), BulkProgress)
    assert_type(billing.sync.select("failed").purge(), BulkProgress)
    criteria: JobCriteria = {"error": "Timeout*", "arguments": {"invoice": 7}}
    async for info in billing.find(state="failed", oldest_first=True, **criteria):
        assert_type(info, JobInfo)
    assert_type(await billing.rerun_flow("nightly"), int)
    assert_type(await billing.lock(charge, invoice=7).info(), LockInfo | None)
    assert_type(billing.sync.lock(charge, invoice=7).release(), bool)
    Queue("secret", codec=Encrypted({"k": new_key()}, lock_key=new_key()))


async def flows() -> None:
    assert_type(await group(charge, [("acme", 1), ("acme", 2)]), Job[list[Receipt]])
    assert_type(await (await group(charge, [("acme", 1)])).result(), list[Receipt])
    assert_type(await chain(charge, email, first=("acme", 1)), Job[Any])
    assert_type(await chord(charge, [("acme", 1)], email), Job[Any])
    assert_type(await billing.flow_tree("x"), FlowTree)
    async with billing.flow(id="nightly") as flow:
        first = flow.add(charge, tenant="acme", invoice=1)
        flow.add(
            email.options(after=[first], on_child_failure="continue"), [first.ref], subject="hi"
        )
    with billing.sync.flow() as blocking_flow:
        assert_type(blocking_flow.add(charge, "acme", 7), SyncJob[Receipt])


async def schedules() -> None:
    await billing.schedule(
        "nightly", Cron("0 3 * * *", tz="Europe/Zurich", catch_up="one"), charge, "acme", invoice=7
    )
    await billing.schedule("poll", Every(timedelta(minutes=5), after_complete=True), digest)
    assert_type(await billing.schedules(), list[ScheduleInfo])
    assert_type(await billing.run_schedule("nightly"), Job[Any])
    assert_type(await billing.unschedule("nightly"), bool)
    billing.sync.schedule("poll", Every(300), digest)


async def limits() -> None:
    Queue(
        "keyed",
        mode="keyed",
        limit=10,
        key_limit=2,
        rate=Rate(100, per=60),
        key_rate=Bucket(10, refill=0.5),
        limits_version=2,
    )
    await billing.set_limits(limit=5, rate=None)
    await billing.set_limits(key="acme", key_limit=3, key_rate=Rate(1, per=timedelta(seconds=1)))
    found = await billing.limits()
    assert_type(found, QueueLimits)
    assert_type(found.rate, Rate | Bucket | None)


async def batches() -> None:
    assert_type(index, BatchTask[Receipt])
    await index.enqueue(Receipt(1, 2))
    await index_in_a_thread.options(priority=2).enqueue(7)
    await index.enqueue_many([(Receipt(1, 2),)])
