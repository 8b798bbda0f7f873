"""The store of the browser's tests: a shop with jobs in all states, and its dashboards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from jobq import Cron, Every, Job, Queue, Worker
from jobq.web import app
from tests.web.browser.live import Live, add_tasks

PAUSED = "archive"
"""A queue that is paused, so its jobs wait."""


@dataclass
class Shop:
    """What tests look at and change. Each test changes jobs of its own."""

    live: Live
    address: str
    """A dashboard that may do everything."""
    read_only: str
    billing: Queue
    mail: Queue
    archive: Queue
    other: Queue
    """Of another tenant."""
    worker: Worker
    flow: Job[int]
    """The last job of a flow that waits at its gate."""

    def enqueue(self, queue: Queue, task: str, *args: object, **options: object) -> Job[object]:
        """A new job."""
        made: Job[object] = self.live.run(queue.task_by_name(task, **options).enqueue(*args))  # type: ignore[arg-type]
        return made

    def end(self, *jobs: Job[object]) -> None:
        """Wait until jobs have ended."""
        for job in jobs:
            self.live.run(job.wait(timeout=20))


@contextmanager
def opened_shop(url: str) -> Iterator[Shop]:
    """A shop with jobs in all seven states, two workers, schedules and a flow."""
    with Live(url) as live:
        billing = live.queue("billing")
        mail = live.queue("mail", mode="keyed")
        archive = live.queue(PAUSED)
        other = live.queue("billing", tenant="acme")
        for queue in (billing, mail, archive, other):
            add_tasks(queue)
        worker = live.work(billing, mail, other, concurrency=8, name="shop-1")
        live.work(archive, concurrency=2, name="shop-2")
        flow = live.run(_filled(billing, mail, archive, other))
        yield Shop(
            live=live,
            address=live.serve(app(url)),
            read_only=live.serve(app(url, read_only=True)),
            billing=billing,
            mail=mail,
            archive=archive,
            other=other,
            worker=worker,
            flow=flow,
        )


async def _filled(billing: Queue, mail: Queue, archive: Queue, other: Queue) -> Job[int]:
    await archive.pause()
    charge, decline = billing.task_by_name("charge"), billing.task_by_name("decline")
    done = [await charge.enqueue(f"customer {n}", cents=n) for n in range(6)]
    done += [await decline.enqueue(f"customer {n}") for n in range(5)]
    done += [await billing.task_by_name("decline", id="declined").enqueue("ann")]
    done += [await mail.task_by_name("charge", id="mailed", key="key 1").enqueue("ann")]
    done += [await billing.task_by_name("refuse").enqueue("mallory")]
    done += [await other.task_by_name("decline").enqueue("acme's customer")]
    await billing.task_by_name("charge", delay=3600, id="later").enqueue("later")
    await archive.task_by_name("charge", id="waits").enqueue("waits", cents=1)
    dropped = await archive.task_by_name("charge", id="dropped").enqueue("dropped")
    await dropped.cancel()
    done += [
        await mail.task_by_name("charge", key=f"key {n % 2}", meta={"order": str(n)}).enqueue("m")
        for n in range(3)
    ]
    for job in done:
        await job.wait(timeout=20)
    await billing.schedule("nightly", Cron("0 3 * * *"), charge, "nightly")
    await billing.schedule("hourly", Every(3600), decline, "hourly")
    async with billing.flow(id="order-7") as flow:
        parts = [flow.add(billing.task_by_name("add"), n, n) for n in range(4)]
        gate = flow.add(billing.task_by_name("wait"))
        last = flow.add(billing.task_by_name("add", after=[gate]), *(part.ref for part in parts))
    for part in parts:
        await part.wait(timeout=20)
    return last
