"""What `executor="process"` costs and brings: `python -m bench.executors`.

- The time and the processor time of a job that does nothing, inline and in child processes, at
  concurrency 8. Both in memory://, one after the other, several times.
- Jobs per second of two processes on one Valkey server, with Celery's prefork pool and RQ's
  workers if `make bench-peers` has installed them.
- How much faster jobs that compute are with two children than with one, and the same for two bare
  Python processes: two virtual cores are often less than two.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from bench.places import place
from bench.roster import ROOT
from bench.ticks import Ticks

_BURN = 200_000  # rounds of a job that computes: some 15 ms
_SETTLE_S = 0.01  # between two looks at the count, which reads a few bytes


class Cost(NamedTuple):
    """Microseconds per job: as a clock sees it, and of the worker's processor time."""

    wall: float
    processor: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=5_000, help="jobs of each measurement")
    parser.add_argument("--runs", type=int, default=3, help="the median of this many runs counts")
    options = parser.parse_args()
    for report in (_overhead, _scaling, _peers):
        report(options.jobs, options.runs)


def _overhead(jobs: int, runs: int) -> None:
    both = [(_cost("noop_inline", jobs), _cost("noop", jobs)) for _ in range(runs)]
    for name, which in (("inline", 0), ("process", 1)):
        wall = statistics.median(pair[which].wall for pair in both)
        processor = statistics.median(pair[which].processor for pair in both)
        print(f"{name:8} {wall:6.0f} µs per job, {processor:4.0f} µs of the worker's processor")
    extra = statistics.median(pair[1].wall - pair[0].wall for pair in both)
    processor = statistics.median(pair[1].processor - pair[0].processor for pair in both)
    print(f"overhead {extra:6.0f} µs per job, {processor:4.0f} µs of the worker's processor")


def _scaling(jobs: int, runs: int) -> None:
    count = max(20, jobs // 100)
    rounds = [
        (
            _cost("burn", count, argument=_BURN, pool=1).wall
            / _cost("burn", count, argument=_BURN, pool=2).wall,
            2 * _bare(1, count // 2) / _bare(2, count // 2),
        )
        for _ in range(runs)
    ]
    gain, most = (statistics.median(one[n] for one in rounds) for n in range(2))
    print(f"scaling  {gain:.2f} times as fast with 2 children as with 1")
    print(f"         {most:.2f} times with two bare Python processes: what this machine gives")


def _bare(processes: int, count: int) -> float:
    """Seconds that so many processes take for the same loop as `burn`, without a queue."""
    code = f"for _ in range({count}):\n total = 0\n for k in range({_BURN}): total += k * k"
    began = time.perf_counter()
    running = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(processes)]
    for process in running:
        process.wait(timeout=300)
    return time.perf_counter() - began


def _cost(task: str, jobs: int, *, argument: int = 0, pool: int = 8) -> Cost:
    """Measure in a new process, so that nothing is left from the last measurement."""
    code = (
        "import asyncio, bench.executors as b; "
        f"asyncio.run(b.measure({task!r}, {jobs}, {argument}, {pool}))"
    )
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env=os.environ | {"BENCH_TICKS": folder},
            capture_output=True,
            text=True,
            check=True,
            timeout=300,
        )
    wall, processor = done.stdout.split()
    return Cost(float(wall), float(processor))


async def measure(task: str, jobs: int, argument: int, pool: int) -> None:
    """Run jobs in this process, and print the cost of one."""
    from bench.peers import forking_jobq as app
    from jobq import Worker

    chosen: Any = getattr(app, task)
    ticks = Ticks(os.environ["BENCH_TICKS"])
    async with app.queue, app.plain:
        async with Worker(app.queue, app.plain, concurrency=8, pool=pool):
            await chosen.enqueue_many((argument,) for _ in range(jobs // 10 + 1))  # warm up
            while ticks.total() <= jobs // 10:
                await asyncio.sleep(_SETTLE_S)
        first = ticks.total()
        await chosen.enqueue_many((argument,) for _ in range(jobs))
        async with Worker(app.queue, app.plain, concurrency=8, pool=pool):
            began, used = time.perf_counter(), _processor()
            while ticks.total() - first < jobs:
                await asyncio.sleep(_SETTLE_S)
            print((time.perf_counter() - began) / jobs * 1e6, (_processor() - used) / jobs * 1e6)


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


# ── other libraries ───────────────────────────────────────────────────────────────────────────────


def _peers(jobs: int, runs: int) -> None:
    """Measure all peers in turn, several times: the load of a machine changes by the minute."""
    shares = {"jobq": 1, "celery": 2, "rq": 20}  # slower ones get fewer jobs
    programs = {peer: ROOT / ".venv-bench" / peer / "bin" / "python" for peer in shares}
    programs["jobq"] = Path(sys.executable)
    for peer in [peer for peer, program in programs.items() if not program.exists()]:
        print(f"{peer:8} is not installed: run make bench-peers")
        del programs[peer]
    rounds = [
        {peer: _rate(peer, program, jobs // shares[peer]) for peer, program in programs.items()}
        for _ in range(runs)
    ]
    for peer in programs:
        rate = statistics.median(one[peer] for one in rounds)
        times = sorted(one["jobq"] / one[peer] for one in rounds)
        print(
            f"{peer:8} {rate:6.0f} jobs/s with 2 processes; jobq is {statistics.median(times):.1f} "
            f"times that ({times[0]:.1f} to {times[-1]:.1f})"
        )


def _rate(peer: str, python: Path, jobs: int) -> float:
    """Jobs per second, between the first tenth and the last."""
    with place("valkey", "redis://127.0.0.1:{port}/0") as server, _folder() as folder:
        command = [str(python), "-m", "bench.peers.forking", peer, server.url, folder]
        variables = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "BENCH_TICKS": folder}
        subprocess.run([*command, str(jobs)], cwd=ROOT, env=variables, check=True, timeout=300)
        worker = subprocess.Popen(
            [*command, "work"],
            cwd=ROOT,
            env=variables,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            ticks = Ticks(folder)
            first, began = _until(lambda: ticks.total() >= jobs // 10, ticks)
            last, ended = _until(lambda: ticks.total() >= jobs, ticks)
        finally:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.wait()
        return (last - first) / (ended - began)


def _until(condition: Callable[[], bool], ticks: Ticks, seconds: float = 120) -> tuple[int, float]:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"only {ticks.total()} jobs in {seconds:g} s")
        time.sleep(_SETTLE_S)
    return ticks.total(), time.perf_counter()


def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


if __name__ == "__main__":
    main()
