"""How long a process takes to start: `import jobq`, and `jq-ctl --help`.

    python -m bench.start [--rounds 10]

Each row is a new Python process, in milliseconds of processor time, which other load on the machine
disturbs least. On a quiet core, that is what a person waits. Rounds are interleaved. The first two
rows are floors: Python itself, and the two libraries that everything of jobq needs. It exits with 1
if the best time of a row misses its bound.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from typing import NamedTuple

CTL = "from jobq.cli.ctl import main; main(prog_name='jq-ctl')"

ENVIRONMENT = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
"""An installed package is compiled."""


class Start(NamedTuple):
    """A process to measure: its code and arguments, and how many milliseconds it may take."""

    code: str
    arguments: tuple[str, ...] = ()
    bound_ms: float | None = None


STARTS = {
    "python": Start("pass"),
    "import asyncio, msgspec": Start("import asyncio, msgspec"),
    "import jobq": Start("import jobq", bound_ms=150),
    "from jobq import Queue": Start("from jobq import Queue", bound_ms=150),
    "from jobq import Queue, Worker": Start("from jobq import Queue, Worker", bound_ms=150),
    "from jobq import *": Start("from jobq import *"),
    "jq-ctl --help": Start(CTL, ("--help",), 200),
    "jq-ctl job --help": Start(CTL, ("job", "--help")),
    "jq-ctl version": Start(CTL, ("version",)),
}


def processor_ms(start: Start) -> float:
    """Run a process to its end. Returns its processor time."""
    command = [sys.executable, "-c", start.code, *start.arguments]
    with subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} exited with {process.returncode}")
    return 1000 * (used.ru_utime + used.ru_stime)


def main() -> int:
    """Print a row per process."""
    parser = argparse.ArgumentParser(prog="python -m bench.start", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="processes per row")
    rounds = parser.parse_args().rounds
    for start in STARTS.values():  # compiles what changed
        processor_ms(start)
    measured: dict[str, list[float]] = {name: [] for name in STARTS}
    for _ in range(rounds):
        for name, start in STARTS.items():
            measured[name].append(processor_ms(start))
    missed = 0
    print(f"{'ms of processor time':<32} {'best':>6} {'median':>6} {'bound':>6}")
    for name, (_, _, bound) in STARTS.items():
        best, median = min(measured[name]), statistics.median(measured[name])
        missed += bound is not None and best > bound
        print(f"{name:<32} {best:>6.0f} {median:>6.0f} {'' if bound is None else bound:>6}")
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main())
