"""Pictures of the dashboard for the docs, from a live store: `python scripts/screenshots.py`.

It needs chromium in the PATH, and takes about two minutes. An hour of a shop's work is made with a
clock that runs fast. After that, real workers go on, so the pictures also show what runs now.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

import uvicorn

from jobq import Cron, Every, Queue, Worker, current_job
from jobq.core.records.jobs import Claim, Complete, Fail, Failure, JobSpec, Lease, QueueName
from jobq.core.records.queues import Limits, QueueConfig, Window
from jobq.stores import open_store
from jobq.stores.base import Store
from jobq.web import app

IMAGES = Path(__file__).parents[1] / "docs/images"
MAX_BYTES = 200_000
"""Of one picture, so that the repository and the pages of the docs stay small."""
MINUTES = 60
SEED = 19


class ShownQueue(NamedTuple):
    """A queue of the shop: its tasks, jobs per minute, and milliseconds that a run takes."""

    queue: str
    tasks: tuple[str, ...]
    per_minute: int
    run_ms: int
    keys: tuple[str, ...] = ()


SHOWN_QUEUES = (
    ShownQueue("billing", ("charge", "refund", "send_invoice"), 46, 320),
    ShownQueue("emails", ("welcome", "receipt", "digest"), 120, 90),
    ShownQueue(
        "images", ("resize", "optimise"), 24, 1_900, ("acme", "globex", "initech", "umbrella")
    ),
    ShownQueue("reports", ("daily_sales", "export_csv"), 5, 9_500),
    ShownQueue("search", ("index_product", "drop_product"), 64, 45),
)
ERRORS = {
    "charge": (
        ("stripe.CardError", "Your card was declined: insufficient_funds", "c41f20a9be17", 16),
        ("httpx.ReadTimeout", "timed out after 10 s: POST /v1/charges", "77a0d2f3c9b1", 7),
    ),
    "receipt": (("smtplib.SMTPRecipientsRefused", "550 mailbox unavailable", "0be9918f6a2d", 11),),
    "resize": (("PIL.UnidentifiedImageError", "cannot identify image file", "f00d5ca1ab1e", 5),),
    "export_csv": (("MemoryError", "", "9c3d11aa07e4", 2),),
    "index_product": (("KeyError", "'price'", "5ad1e8b4427c", 9),),
}
"""By task: type, message and fingerprint of an error, and how many jobs it has failed."""


class FastClock:
    """Milliseconds since the epoch, as far as the story has come."""

    def __init__(self) -> None:
        self.ms = int(time.time() * 1000) - MINUTES * 60_000

    def __call__(self) -> int:
        return self.ms


async def past_hour(url: str) -> None:
    """An hour of work, minute by minute."""
    clock, dice = FastClock(), random.Random(SEED)
    async with open_store(url, clock=clock) as store:
        for minute in range(MINUTES):
            began = clock.ms
            for shown in SHOWN_QUEUES:
                await _minute(store, clock, dice, shown, minute)
            clock.ms = max(clock.ms, began + 60_000)
        # Making the hour has taken some seconds. Their jobs are made too, or charts would fall.
        while (left_ms := int(time.time() * 1000) - clock.ms) > 1_000:
            share, began = min(1.0, left_ms / 60_000), clock.ms
            for shown in SHOWN_QUEUES:
                part = shown._replace(per_minute=max(1, round(shown.per_minute * share)))
                await _minute(store, clock, dice, part, MINUTES)
            clock.ms = max(clock.ms, began + left_ms)


async def _minute(
    store: Store, clock: FastClock, dice: random.Random, shown: ShownQueue, minute: int
) -> None:
    queue = QueueName("default", shown.queue)
    # Traffic rises over the hour, with a dip in the middle.
    wave = 0.55 + 0.45 * minute / MINUTES - 0.3 * (24 < minute < 32) + dice.uniform(-0.12, 0.12)
    number = max(1, round(shown.per_minute * wave))
    specs = [_spec(queue, shown, minute, n, dice) for n in range(number)]
    await store.put(specs)
    began, left = clock.ms, number
    while left > 0:
        clock.ms += dice.randint(20, 60)
        claim = Claim(queues=(queue,), limit=min(40, left), lease_ms=120_000)
        worker = f"web-{dice.randint(1, 3)}"
        found = await store.settle([], worker=worker, call=f"{minute}-{left}", then=claim)
        if not found.leases:
            break
        for _ in found.leases:
            clock.ms += max(1, round(shown.run_ms * dice.lognormvariate(-3, 0.7)))
        outcomes = [_outcome(lease, minute, clock.ms) for lease in found.leases]
        await store.settle(outcomes, worker=worker, call=f"{minute}-{left}-end")
        left -= len(found.leases)
    clock.ms = max(began, min(clock.ms, began + 11_000))


def _spec(queue: QueueName, shown: ShownQueue, minute: int, n: int, dice: random.Random) -> JobSpec:
    task = shown.tasks[min(len(shown.tasks) - 1, int(dice.expovariate(1.2)))]
    order = 48_000 + minute * 160 + n
    return JobSpec(
        queue=queue,
        id=f"{task[:3]}-{order}",
        name=task,
        payload=f'[["customer {order % 700}"],{{"order":{order}}}]'.encode(),
        key=dice.choice(shown.keys) if shown.keys else None,
    )


_spent: dict[tuple[str, str], int] = {}


def _outcome(lease: Lease, minute: int, now_ms: int) -> Complete | Fail:
    """Each error is spread over the last half hour."""
    for type_, message, fingerprint, times in ERRORS.get(lease.name, ()):
        spent = _spent.get((lease.name, type_), 0)
        if spent < times and minute > MINUTES - 34 + spent * 30 // times:
            _spent[lease.name, type_] = spent + 1
            failure = Failure(
                reason="error",
                type=type_,
                message=message,
                traceback=_traceback(lease.name, type_, message),
                fingerprint=fingerprint,
                attempt=lease.attempt,
                at_ms=now_ms,
            )
            return Fail(queue=lease.queue, id=lease.id, token=lease.token, failure=failure)
    return Complete(queue=lease.queue, id=lease.id, token=lease.token, result=b'{"ok":true}')


def _traceback(task: str, type_: str, message: str) -> str:
    return (
        "Traceback (most recent call last):\n"
        f'  File "/srv/shop/tasks.py", line 88, in {task}\n'
        "    reply = await gateway.post(request)\n"
        '  File "/srv/shop/gateway.py", line 31, in post\n'
        "    raise error_of(reply)\n"
        f"{type_}: {message}\n"
    )


# ── now ───────────────────────────────────────────────────────────────────────────────────────────


class Shop:
    """The queues with handlers that real workers run."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.queues = {
            shown.queue: Queue(shown.queue, url, mode="keyed" if shown.keys else "plain")
            for shown in SHOWN_QUEUES
        }
        self.stop = asyncio.Event()
        for shown in SHOWN_QUEUES:
            for task in shown.tasks:
                self._add(self.queues[shown.queue], task, shown.run_ms / 1000)
        self._add_slow(self.queues["reports"])

    def _add(self, queue: Queue, name: str, seconds: float) -> None:
        @queue.task(name=name, retry=0)
        async def work(*args: Any, **kwargs: Any) -> dict[str, bool]:
            await asyncio.sleep(seconds)
            return {"ok": True}

    def _add_slow(self, queue: Queue) -> None:
        @queue.task(name="close_of_month", retry=0)
        async def close_of_month(*args: Any, month: str = "") -> str:
            job = current_job()
            await job.log(f"reading ledger of {month}")
            for n, region in enumerate(("emea", "apac", "amer"), 1):
                await job.log(f"{region}: {n * 4_211:,} bookings, {n * 17} need a look")
                await job.progress({"done": n * 3, "total": 14})
            await self.stop.wait()
            return "closed"

        @queue.task(name="load_region", retry=0)
        async def load_region(region: str, *, fails: bool = False) -> int:
            if fails:
                raise ConnectionError(f"warehouse {region!r} refused the connection")
            return len(region)

        @queue.task(name="publish", retry=0)
        async def publish(*args: Any) -> None:
            await asyncio.sleep(0)


@asynccontextmanager
async def present(url: str) -> AsyncIterator[dict[str, dict[str, str]]]:
    """Workers at work, schedules and a flow. Yields the addresses of the pages."""
    shop = Shop(url)
    async with AsyncExitStack() as stack:
        for queue in shop.queues.values():
            await stack.enter_async_context(queue)
        queues = shop.queues
        for name, served, concurrency in (
            ("web-1", ("billing", "emails", "search"), 20),
            ("web-2", ("billing", "emails", "images"), 20),
            ("batch-1", ("reports", "images"), 6),
        ):
            worker = Worker(
                *(queues[each] for each in served), concurrency=concurrency, name=name, drain=0
            )
            await stack.enter_async_context(worker)
        stack.push_async_callback(_set, shop.stop)
        await _schedules(queues)
        async with open_store(url) as store:
            limits = Limits(limit=12, rate=Window(limit=100, per_ms=60_000))
            await store.declare(
                QueueName("default", "billing"), QueueConfig(limits=limits, limits_version=1)
            )
        month = queues["reports"].task_by_name(
            "close_of_month", id="close-2026-10", meta={"requested_by": "ann@shop.example"}
        )
        await month.enqueue("main", month="2026-10")
        flow = await _flow(queues)
        waits = queues["emails"].task_by_name("digest", delay=1800)
        await waits.enqueue_many([(f"customer {n}",) for n in range(140)])
        traffic = asyncio.create_task(_traffic(shop))
        stack.callback(traffic.cancel)
        place = {"tenant": "default"}
        yield {
            "overview": {},
            "queue": place | {"queue": "billing"},
            "job": place | {"queue": "reports", "id": "close-2026-10"},
            "flow": place | {"queue": "reports", "id": flow},
            "dead-letters": {},
        }


async def _set(event: asyncio.Event) -> None:
    event.set()


async def _schedules(queues: dict[str, Queue]) -> None:
    reports, billing = queues["reports"], queues["billing"]
    await reports.schedule(
        "daily-sales", Cron("0 6 * * *", tz="Europe/Zurich"), reports.task_by_name("daily_sales")
    )
    await billing.schedule("invoices", Every(900), billing.task_by_name("send_invoice"))


async def _flow(queues: dict[str, Queue]) -> str:
    """A flow with jobs in most states. Returns the id of its last job."""
    reports = queues["reports"]
    load, close = reports.task_by_name("load_region"), reports.task_by_name("close_of_month")
    tolerant = reports.task_by_name("daily_sales", on_child_failure="continue", delay=2)
    async with reports.flow(id="month-end") as flow:
        regions = [
            flow.add(load, region, fails=region == "apac-north")
            for region in ("emea-west", "emea-east", "apac-north", "apac-south", "amer")
        ]
        ledgers = [flow.add(close, regions[0].ref, month="EMEA"), flow.add(close, regions[4].ref)]
        sales = flow.add(tolerant, *(region.ref for region in regions))
        audit = flow.add(reports.task_by_name("export_csv"), *(each.ref for each in ledgers))
        last = flow.add(reports.task_by_name("publish"), audit.ref, sales.ref)
    for region in regions:
        await region.wait(timeout=20)
    return last.id


async def _traffic(shop: Shop) -> None:
    """New jobs for as long as pictures are taken."""
    dice = random.Random(SEED)
    while True:
        for shown in SHOWN_QUEUES:
            key: Any = {"key": dice.choice(shown.keys)} if shown.keys else {}
            task = shop.queues[shown.queue].task_by_name(dice.choice(shown.tasks), **key)
            number = int(shown.per_minute / 60 + dice.random())
            await task.enqueue_many([(f"customer {dice.randint(1, 700)}",)] * number)
        await asyncio.sleep(1)


# ── the pictures ──────────────────────────────────────────────────────────────────────────────────


@contextmanager
def served(url: str) -> Iterator[tuple[str, dict[str, dict[str, str]]]]:
    """The dashboard and the shop in a thread. Yields the address and the pages."""
    listener = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(
        uvicorn.Config(app(url), log_level="warning", timeout_graceful_shutdown=1)
    )
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    ready = threading.Event()
    pages: dict[str, dict[str, str]] = {}

    async def main() -> None:
        await past_hour(url)
        async with present(url) as found:
            pages.update(found)
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            await asyncio.sleep(70)  # so that the last whole minute is of real workers
            ready.set()
            await serving

    thread = threading.Thread(target=asyncio.run, args=(main(),), name="shop")
    thread.start()
    try:
        while not ready.wait(0.2):
            if not thread.is_alive():
                raise SystemExit("the shop has stopped: see its error above")
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", pages
    finally:
        server.should_exit = True
        thread.join(20)
        listener.close()


PATHS = {
    "overview": "/",
    "queue": "/queue",
    "job": "/job",
    "flow": "/flow",
    "dead-letters": "/dead",
}


def photograph(browser: Any, address: str, name: str, query: dict[str, str], folder: Path) -> None:
    """Take a page in light and in dark."""
    for scheme in ("light", "dark"):
        context = browser.new_context(
            viewport={"width": 1280, "height": 800}, color_scheme=scheme, reduced_motion="reduce"
        )
        tab = context.new_page()
        tab.goto(f"{address}{PATHS[name]}" + (f"?{urlencode(query)}" if query else ""))
        tab.locator("[data-live=on]").first.wait_for(timeout=10_000)
        tab.wait_for_timeout(1_500)  # charts, and the first live update
        file = folder / f"{name}-{scheme}.png"
        tab.screenshot(path=str(file))
        context.close()
        size = file.stat().st_size
        print(f"{file.name}: {size / 1000:.0f} kB")
        if size > MAX_BYTES:
            raise SystemExit(f"{file.name} has {size:,} bytes, more than {MAX_BYTES:,}")


def main() -> None:
    """Write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=IMAGES, help="default: docs/images")
    parser.add_argument("--only", choices=PATHS, help="only this page")
    given = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("needs chromium in the PATH")
    from playwright.sync_api import sync_playwright

    given.folder.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory() as folder,
        served(f"sqlite:///{folder}/shop.db") as (address, pages),
        sync_playwright() as started,
    ):
        # Root may not use Chromium's sandbox; the pages are our own.
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, query in pages.items():
            if given.only in (None, name):
                photograph(browser, address, name, query, given.folder)
        browser.close()


if __name__ == "__main__":
    main()
