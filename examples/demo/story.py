"""A few thousand jobs on a SQLite file, two workers, one of them killed half-way: `make demo`.

`shop.py` is the application, `screen.py` what is shown, `server.py` the same behind a jq-server,
and `pipeline.py` the part on Spark.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import pipeline
import server
from rich.text import Text
from screen import Tally, console, final_table, say, shown
from shop import FOLDER, URL, checksum, fetch, film, invoice, price, remind, resize, shop, urgent

READY_S = 30.0
"""Seconds until both workers must have started: a loaded machine needs a few for the imports."""


def start_worker(name: str) -> subprocess.Popen[bytes]:
    """Start a worker as in production: as a process of its own."""
    command = [sys.executable, "-m", "jobq.cli.worker", "--app", "shop:shop", "--name", name]
    command += ["--concurrency", "50", "--lease", "2s"]
    with open(FOLDER / f"{name}.log", "wb") as log:
        return subprocess.Popen(
            command,
            cwd=Path(__file__).parent,
            env={**os.environ, "DEMO_DIR": str(FOLDER)},
            stderr=log,
            stdout=log,
        )


async def wait_for_workers(processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait until every worker has announced itself."""
    async with asyncio.timeout(READY_S):
        while len(await shop.workers()) < len(processes):
            if any(process.poll() is not None for process in processes):
                logs = "".join(log.read_text() for log in FOLDER.glob("*.log"))
                raise SystemExit(f"a worker did not start:\n{logs}")
            await asyncio.sleep(0.1)


async def follow(tally: Tally) -> None:
    """Count every event of the log, from its beginning."""
    async for event in shop.events(after="0"):
        tally.add(event)


async def send() -> None:
    """Enqueue some jobs of every task."""
    await resize.enqueue_many([(n, 640) for n in range(3000)])
    await checksum.enqueue_many([(n,) for n in range(300)])
    await fetch.enqueue_many([(n,) for n in range(600)])
    await shop.enqueue_many([remind.options(delay=1 + n % 20 / 10).bind(n) for n in range(200)])
    await invoice.enqueue_many([(n,) for n in range(1, 6)])
    await urgent.options(priority=10).enqueue_many([(n,) for n in range(100)])


async def ask(n: int) -> list[float]:
    """Call a task `n` times and wait for each result; how many seconds each call took."""
    took = []
    for article in range(n):
        began = time.perf_counter()
        answer = await price.options(call_timeout=30, priority=100).call(article)
        took.append(time.perf_counter() - began)
        assert answer == article * 1.08
    return took


async def play(workers: list[subprocess.Popen[bytes]], tally: Tally) -> None:
    """Send the jobs, kill a worker among them, and wait until every job has ended."""
    async with shown(tally):
        running = await film.options(priority=100).enqueue("The Long Wait")
        later = await film.options(delay=3600).enqueue("Never Shown")
        await send()
        await tally.until(lambda: tally.ended() > 1200)
        # SIGKILL: the worker cannot say goodbye. Its leases expire, and the other takes over.
        workers[0].kill()
        killed_at = tally.ended()
        took = await ask(100)
        await later.cancel()  # has not started: cancelled at once
        await running.cancel()  # is running: asked to stop
        await tally.until(lambda: tally.complete)
    stalled = tally.total("stalled")
    say(f"one worker was killed (kill -9) after {killed_at:,} jobs")
    say(f"the other worker took over the {stalled} jobs that it was running")
    each, worst = median(took) * 1000, max(took) * 1000
    say(f"100 calls that wait for their result: {each:.1f} ms each, {worst:.1f} ms at worst")
    await fix_a_dead_letter()


async def fix_a_dead_letter() -> None:
    """Look at the jobs that failed, fix their cause, and run one of them again."""
    dead = [job async for job in shop.find(state="failed")]
    first, why = dead[0], dead[0].failure
    assert why is not None
    job = f"{first.name}({first.args[0]}) after {first.failures} attempts"
    say(f"{len(dead)} dead letters, e.g. {job}: {why.type}: {why.message}")
    (FOLDER / "rates.txt").write_text("1.5")
    handle = shop.job(first.id)
    await handle.rerun()
    say(f"its cause fixed and run again: {await handle.result(timeout=30)!r}", "green")


async def tell() -> bool:
    """The whole story. False if a job is not accounted for."""
    tally = Tally()
    workers = [start_worker(name) for name in ("left", "right")]
    try:
        async with shop:
            follower = asyncio.create_task(follow(tally))
            await wait_for_workers(workers)
            say("two workers are running: jq-worker --app shop:shop")
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
    sums = " + ".join(f"{counts[end]:,} {end}" for end in counts if counts[end])
    say(f"{accepted:,} accepted = {sums}", "bold")
    return accepted == held == sum(counts[end] for end in counts if end.ended)


def main() -> int:
    """Run both halves. Removes the folder at the end, unless DEMO_DIR named it or a step failed."""
    began = time.monotonic()
    keep = "DEMO_DIR" in os.environ
    complete = went_well = False
    try:
        FOLDER.mkdir(parents=True, exist_ok=True)
        for old in (*FOLDER.glob("jobs.db*"), *FOLDER.glob("rates.txt")):
            old.unlink()
        console.rule("[bold]jobq demo")
        complete = asyncio.run(tell()) and server.run()
        went_well = pipeline.run()
    finally:
        if complete and went_well and not keep:
            shutil.rmtree(FOLDER, ignore_errors=True)
        elif not (complete and went_well):
            say(f"a step failed: the logs and the SQLite file are kept in {FOLDER}", "bold red")
    verdict, style = (
        ("every job is accounted for", "green") if complete else ("JOBS ARE MISSING", "bold red")
    )
    took = Text(f"; {time.monotonic() - began:.0f} seconds", style="bright_black")
    console.print(Text("• ", style="cyan") + Text(verdict, style=style) + took)
    look = f"jq-ctl --url {URL} status"
    if not keep:
        look = "DEMO_DIR=/tmp/demo make demo keeps the file, so that you can look at it with jq-ctl"
    console.print(Text(f"  {look}", style="bright_black"))
    return 0 if complete and went_well else 1


if __name__ == "__main__":
    sys.exit(main())
