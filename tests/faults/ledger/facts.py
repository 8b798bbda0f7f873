"""What is known about each job: lines that processes write while they run, and the judge reads.

A line is about one job and begins with its number, so sorting all lines brings those of one job
together, its events in the order in which they were read. A line that a kill cut short has no line
break, and is dropped. Times are milliseconds of the machine's monotonic clock, which all processes
share and no fault moves. Only an event has the time of its store.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

SORT_MEMORY = "256M"
"""Memory of `sort`, which uses files beyond that: the judge's memory does not grow with the jobs.
"""


def now_ms() -> int:
    """The monotonic time of the machine."""
    return time.monotonic_ns() // 1_000_000


def acked(job: int, at_ms: int) -> str:
    """A producer was told that the job is stored."""
    return f"{job:08}\tA\t{at_ms}\n"


def run_started(job: int, at_ms: int, attempt: int, life: int, worker: str) -> str:
    """A handler was called."""
    return f"{job:08}\tS\t{at_ms:013}\t{attempt}\t{life}\t{worker}\t{os.getpid()}\n"


def run_ended(job: int, at_ms: int, attempt: int, life: int, worker: str) -> str:
    """A handler is about to return."""
    return f"{job:08}\tT\t{at_ms:013}\t{attempt}\t{life}\t{worker}\t{os.getpid()}\n"


def refused(job: int, at_ms: int, attempt: int) -> str:
    """A worker reported the outcome of a run whose lease it had lost, and the store refused it."""
    return f"{job:08}\tL\t{at_ms:013}\t{attempt}\n"


def happened(job: int, place: int, event: Event) -> str:
    """An event of the store's log. `place` counts the events in the order they were read."""
    return f"{job:08}\tV\t{place:012}\t" + "\t".join(map(str, event)) + "\n"


def recorded(job: int, state: str, attempt: int, life: int) -> str:
    """The job as the store has it in the end."""
    return f"{job:08}\tZ\t{state}\t{attempt}\t{life}\n"


class Run(NamedTuple):
    """One call of a handler. `ended_ms` is None if the handler did not get to its end."""

    at_ms: int
    attempt: int
    life: int
    worker: str
    pid: int
    ended_ms: int | None = None


class Event(NamedTuple):
    """What the judge needs of an event. `previous` is empty for a job that did not exist."""

    id: str
    kind: str
    previous: str
    state: str
    attempt: int
    life: int
    at_ms: int
    worker: str


class Record(NamedTuple):
    """A job in the store after the last fault."""

    state: str
    attempt: int
    life: int


@dataclass(slots=True)
class Story:
    """All facts about one job."""

    job: int
    acked_ms: int | None = None
    runs: list[Run] = field(default_factory=list)
    late: int = 0
    events: list[Event] = field(default_factory=list)
    record: Record | None = None


def stories(lines: Iterable[str]) -> Iterator[Story]:
    """The facts of each job, from lines that are sorted."""
    for job, group in groupby(lines, lambda line: line[:8]):
        yield _story(int(job), [line.rstrip("\n").split("\t") for line in group])


def _story(job: int, lines: list[list[str]]) -> Story:
    story = Story(job)
    ends: dict[tuple[int, int, str, int], int] = {}
    known: set[str] = set()  # a reader that went back reads events again
    for _, letter, *rest in lines:
        if letter == "A":
            at_ms = int(rest[0])
            story.acked_ms = at_ms if story.acked_ms is None else min(story.acked_ms, at_ms)
        elif letter == "S":
            at, attempt, life, worker, pid = rest
            story.runs.append(Run(int(at), int(attempt), int(life), worker, int(pid)))
        elif letter == "T":
            ends[int(rest[1]), int(rest[2]), rest[3], int(rest[4])] = int(rest[0])
        elif letter == "L":
            story.late += 1
        elif letter == "V" and rest[1] not in known:
            known.add(rest[1])
            _, id, kind, previous, state, attempt, life, at, worker = rest
            story.events.append(
                Event(id, kind, previous, state, int(attempt), int(life), int(at), worker)
            )
        elif letter == "Z":
            story.record = Record(rest[0], int(rest[1]), int(rest[2]))
    story.runs = [
        run._replace(ended_ms=ends.get((run.attempt, run.life, run.worker, run.pid)))
        for run in story.runs
    ]
    return story


def merge(folder: Path, target: Path) -> None:
    """Sort the lines of all files `*.facts` of a folder into one file."""
    unsorted = target.with_suffix(".unsorted")
    with unsorted.open("wb") as out:
        for path in sorted(folder.glob("*.facts")):
            with path.open("rb") as file:
                for line in file:
                    if line.endswith(b"\n"):
                        out.write(line)
    subprocess.run(
        ["sort", "-S", SORT_MEMORY, "-T", str(folder), "-o", str(target), str(unsorted)],
        env={**os.environ, "LC_ALL": "C"},
        check=True,
        timeout=3600,
    )
    unsorted.unlink()
