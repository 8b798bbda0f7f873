"""A few thousand jobs on a SQLite file, worked by two processes, one of which is killed half-way. Run it: `make demo`.

The upper half is an application as anyone would write it; the lower half sends its jobs and shows what becomes of them.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

from rich import box
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from jobq import Queue, Retry, current_job
from jobq.api.info import Event

# ── the application ───────────────────────────────────────────────────────────────────────────────

FOLDER = Path(
    os.environ.get("DEMO_DIR") or tempfile.mkdtemp(prefix="jobq-demo-")
)  # the workers are told which one
URL = f"sqlite:///{FOLDER}/jobs.db"
shop = Queue("shop", URL)


@shop.task
async def resize(picture: int, width: int) -> str:
    """The bread and butter: a little waiting, as for a disk or a network."""
    await asyncio.sleep(0.02 + picture % 5 / 50)
    return f"picture-{picture}-{width}.png"


@shop.task
def checksum(block: int) -> str:
    """A plain function: it runs in a thread."""
    return hashlib.sha256(bytes([block % 256]) * 200_000).hexdigest()[:12]


@shop.task(retry=Retry(5, base=0.2, factor=1.5, jitter=0.2))
async def fetch(page: int) -> int:
    """Two pages in three answer only on the second or third try."""
    if current_job().attempt <= page % 3:
        raise ConnectionError(f"page {page} did not answer")
    return page


@shop.task
async def remind(customer: int) -> None:
    """Sent with a delay."""


@shop.task
async def urgent(order: int) -> None:
    """Sent last, with a priority: it runs before everything that waits."""


@shop.task
async def price(article: int) -> float:
    """Somebody waits for the answer."""
    return article * 1.08


@shop.task(retry=Retry(2, base=0.2))
def invoice(number: int) -> str:
    """Poison, as long as the rates are missing: it fails whenever it runs, and ends in the dead letters."""
    rates = FOLDER / "rates.txt"
    if not rates.exists():
        raise LookupError(f"no exchange rate for invoice {number}")
    return f"invoice {number}: {float(rates.read_text()) * number:.2f} francs"


@shop.task
async def film(title: str) -> None:
    """Takes for ever, says how far it is, and stops when it is asked to."""
    job = current_job()
    for minute in range(10_000):
        await job.progress({"minute": minute})
        await asyncio.sleep(0.1)


# ── what is shown ─────────────────────────────────────────────────────────────────────────────────

console = Console(highlight=False, width=None if sys.stdout.isatty() else 88)
TASKS = ("resize", "checksum", "fetch", "remind", "urgent", "price", "invoice", "film")
ENDS = ("completed", "failed", "cancelled")
STYLES = {
    "completed": "green",
    "retried": "yellow",
    "stalled": "magenta",
    "failed": "red",
    "cancelled": "bright_black",
}


class Tally:
    """Counts what the queue's event log says, task by task."""

    def __init__(self) -> None:
        self.kinds: dict[str, Counter[str]] = defaultdict(Counter)
        self.waits: dict[str, list[float]] = defaultdict(list)
        self.began = time.monotonic()
        self._states: dict[str, Counter[str]] = defaultdict(Counter)
        self._changed = asyncio.Event()

    def add(self, event: Event) -> None:
        """One more."""
        self.kinds[event.name][str(event.kind)] += 1
        self._states[event.name][str(event.state)] += 1
        if event.previous is not None:
            self._states[event.name][str(event.previous)] -= 1
        if event.kind == "started" and event.attempt == 1 and event.started_at is not None:
            self.waits[event.name].append(
                (event.started_at - (event.due_at or event.created_at)).total_seconds()
            )
        self._changed.set()

    def row(self, name: str) -> list[Text]:
        """How often a task's jobs were retried and stalled, and where they stand now."""
        numbers = {**self.kinds[name], **self._states[name]}
        return [_number(numbers.get(what, 0), style) for what, style in STYLES.items()]

    def total(self, *kinds: str) -> int:
        """How many events of these kinds, over all tasks."""
        return sum(counter[kind] for counter in self.kinds.values() for kind in kinds)

    def ended(self, *names: str) -> int:
        """Jobs that have ended, of these tasks or of all."""
        return sum(self._states[name][end] for name in names or TASKS for end in ENDS)

    @property
    def complete(self) -> bool:
        """Whether everything has ended."""
        return self.ended() == self.total("accepted")

    async def until(self, reached: Callable[[], bool], timeout: float = 60) -> None:
        """Wait for something to be so."""
        async with asyncio.timeout(timeout):
            while not reached():
                self._changed.clear()
                await self._changed.wait()


def live_table(tally: Tally) -> RenderableType:
    """Bars, task by task."""
    grid = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    grid.add_column("task")
    grid.add_column("", width=20)
    for title in ("jobs", *STYLES):
        grid.add_column(title, justify="right", min_width=5)
    for name in TASKS:
        if accepted := tally.kinds[name]["accepted"]:
            bar = ProgressBar(
                total=accepted, completed=tally.ended(name), width=20, finished_style="green"
            )
            grid.add_row(name, bar, f"{accepted:,}", *tally.row(name))
    seconds = time.monotonic() - tally.began
    return Group(
        grid,
        Text(
            f"{tally.ended():,} of {tally.total('accepted'):,} jobs ended after {seconds:.1f} s",
            style="bright_black",
        ),
    )


def final_table(tally: Tally) -> RenderableType:
    """What became of everything."""
    grid = Table(
        title="What became of everything",
        title_justify="left",
        title_style="bold",
        header_style="bold",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        padding=(0, 2, 0, 0),
    )
    grid.add_column("task")
    for title in ("jobs", "runs", *STYLES, "waited"):
        grid.add_column(title, justify="right")
    for name in TASKS:
        kinds, waits = tally.kinds[name], tally.waits[name]
        waited = f"{median(waits) * 1000:,.0f} ms" if waits else "·"
        grid.add_row(
            name, f"{kinds['accepted']:,}", f"{kinds['started']:,}", *tally.row(name), waited
        )
    return grid


def _number(n: int, style: str) -> Text:
    return Text(f"{n:,}", style=style) if n else Text("·", style="bright_black")


def say(text: str, style: str = "") -> None:
    """One line of the story."""
    console.print(Text("• ", style="cyan") + Text(text, style=style))


@asynccontextmanager
async def shown(tally: Tally) -> AsyncIterator[None]:
    """The bars, moving, for as long as the context lasts; without a terminal a line now and then."""

    async def lines() -> None:
        while True:
            await asyncio.sleep(2)
            console.print(
                f"  {time.monotonic() - tally.began:4.0f} s  {tally.ended():,} of {tally.total('accepted'):,} jobs ended"
            )

    if console.is_terminal:
        with Live(get_renderable=lambda: live_table(tally), console=console, refresh_per_second=12):
            yield
        return
    printer = asyncio.create_task(lines())
    try:
        yield
    finally:
        printer.cancel()
        console.print(live_table(tally))


# ── the story ─────────────────────────────────────────────────────────────────────────────────────


def start_worker(name: str) -> subprocess.Popen[bytes]:
    """A worker as one starts it in production: a process of its own."""
    command = [
        sys.executable,
        "-m",
        "jobq.cli.worker",
        "--app",
        "demo:shop",
        "--name",
        name,
        "--concurrency",
        "50",
        "--lease",
        "2s",
    ]
    with open(FOLDER / f"{name}.log", "wb") as log:
        return subprocess.Popen(
            command,
            cwd=Path(__file__).parent,
            env={**os.environ, "DEMO_DIR": str(FOLDER)},
            stderr=log,
            stdout=log,
        )


async def follow(tally: Tally) -> None:
    """Feed the tally from the log, from its beginning."""
    async for event in shop.events(after="0"):
        tally.add(event)


async def send() -> None:
    """Some of everything."""
    await resize.enqueue_many([(n, 640) for n in range(3000)])
    await checksum.enqueue_many([(n,) for n in range(300)])
    await fetch.enqueue_many([(n,) for n in range(600)])
    await shop.enqueue_many([remind.options(delay=1 + n % 20 / 10).bind(n) for n in range(200)])
    await invoice.enqueue_many([(n,) for n in range(1, 6)])
    await urgent.options(priority=10).enqueue_many([(n,) for n in range(100)])


async def ask(n: int) -> list[float]:
    """Request and response, one after the other; how long each took."""
    took = []
    for article in range(n):
        began = time.perf_counter()
        answer = await price.options(wait=30, priority=100).call(article)
        took.append(time.perf_counter() - began)
        assert answer == article * 1.08
    return took


async def play(workers: list[subprocess.Popen[bytes]], tally: Tally) -> None:
    """The jobs' side of the demo."""
    async with shown(tally):
        running = await film.options(priority=100).enqueue("The Long Wait")
        later = await film.options(delay=3600).enqueue("Never Shown")
        await send()
        await tally.until(lambda: tally.ended() > 1200)
        workers[
            0
        ].kill()  # SIGKILL: no goodbye; its leases run out and the other worker takes its jobs up
        killed_at = tally.ended()
        took = await ask(100)
        await later.cancel()  # had not started: cancelled at once
        await running.cancel()  # runs: asked to stop
        await tally.until(lambda: tally.complete)
    say(
        f"one worker was killed (kill -9) after {killed_at:,} jobs; the other took up the {tally.total('stalled')} it was running"
    )
    say(
        f"100 calls that wait for their answer: {median(took) * 1000:.1f} ms each, {max(took) * 1000:.1f} ms at worst"
    )
    await dead_letters()


async def dead_letters() -> None:
    """Look at what failed, mend the cause, run one again."""
    dead = [job async for job in shop.find(state="failed")]
    first, why = dead[0], dead[0].failure
    assert why is not None
    say(
        f"{len(dead)} dead letters, e.g. {first.name}({first.args[0]}) after {first.failures} tries: {why.type}: {why.message}"
    )
    (FOLDER / "rates.txt").write_text("1.5")
    job = shop.job(first.id)
    await job.rerun()
    say(f"its cause mended and run again: {await job.result(timeout=30)!r}", "green")


def run_pipeline() -> None:
    """The same events through Spark, where it is installed: the audit's verdict and a report."""
    pipeline = shutil.which(
        "jq-pipeline", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    )
    if pipeline is None or shutil.which("java") is None or os.environ.get("DEMO_PIPELINE") == "no":
        return
    lake = FOLDER / "lake"
    page = Path("out", "demo-report.html").absolute()
    then = ["--audit", "--report", str(page), "--conf", "spark.driver.memory=1g"]
    say("the same events through Spark: into a lake, audited against the store, and a report")
    with open(FOLDER / "pipeline.log", "wb") as log:
        subprocess.run(
            [pipeline, "run", "--source", URL, "--lake", str(lake), "--once", *then],
            check=True,
            stderr=log,
        )


async def tell() -> bool:
    """The whole story; whether every job is accounted for."""
    tally = Tally()
    workers = [start_worker(name) for name in ("left", "right")]
    try:
        async with shop:
            follower = asyncio.create_task(follow(tally))
            await workers_up(2, workers)
            say("two workers are up: jq-worker --app demo:shop")
            await play(workers, tally)
            await tally.until(lambda: tally.complete)
            workers[1].send_signal(signal.SIGTERM)
            code = await asyncio.to_thread(workers[1].wait, 30)
            say(f"the second worker got SIGTERM, drained and left with exit code {code}")
            follower.cancel()
            counts = await shop.counts()
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()
    console.print()
    console.print(final_table(tally))
    accepted, held = tally.total("accepted"), sum(counts.values())
    say(
        f"{accepted:,} accepted = {' + '.join(f'{counts[end]:,} {end}' for end in counts if counts[end])}",
        "bold",
    )
    return accepted == held == sum(counts[end] for end in counts if end.ended)


async def workers_up(n: int, processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait until so many workers have said they are there."""
    async with asyncio.timeout(30):
        while len(await shop.workers()) < n:
            if any(process.poll() is not None for process in processes):
                raise SystemExit("a worker did not start:\n" + read_logs())
            await asyncio.sleep(0.1)


def read_logs() -> str:
    """What the workers said."""
    return "".join(log.read_text() for log in FOLDER.glob("*.log"))


def main() -> int:
    """From an empty folder to an empty folder, unless DEMO_DIR named one to keep."""
    began = time.monotonic()
    keep = "DEMO_DIR" in os.environ
    try:
        FOLDER.mkdir(parents=True, exist_ok=True)
        for old in (*FOLDER.glob("jobs.db*"), *FOLDER.glob("rates.txt")):
            old.unlink()
        console.rule("[bold]jobq demo")
        complete = asyncio.run(tell())
        run_pipeline()
    finally:
        if not keep:
            shutil.rmtree(FOLDER, ignore_errors=True)
    verdict = (
        Text("every job is accounted for", style="green")
        if complete
        else Text("JOBS ARE MISSING", style="bold red")
    )
    console.print(
        Text("• ", style="cyan")
        + verdict
        + Text(f"; {time.monotonic() - began:.0f} seconds", style="bright_black")
    )
    look = (
        f"jq-ctl --url {URL} status"
        if keep
        else "DEMO_DIR=/tmp/demo make demo keeps the file, for a look around with jq-ctl"
    )
    console.print(Text(f"  {look}", style="bright_black"))
    return 0 if complete else 1


if __name__ == "__main__":
    sys.exit(main())
