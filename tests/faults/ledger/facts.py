"""What is known about each job: lines that processes write while they run, and the judge reads.

A line is about one job and begins with its number, so sorting all lines brings those of one job
together. A line that a kill cut short has no line break, and is dropped. Times are milliseconds of
the machine's monotonic clock, which all processes share and no fault moves. Only an event has the
time of its store.

The log of events is read in passes. After a fault that may have undone writes, the reader begins
another pass at an earlier number of the log. What an earlier pass has read after that number counts
only if the new pass has read it again: otherwise the store has lost it, and it is *undone*.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
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


def happened(job: int, reading: int, number: int, event: Event) -> str:
    """An event of the store's log: in which pass it was read, and its number in the log."""
    words = "\t".join(map(str, event))
    return f"{job:08}\tV\t{reading:04}\t{number:010}\t{words}\n"


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
    """What the log says in the end, in its order."""
    undone: list[Event] = field(default_factory=list)
    """Events that were read and that the store has lost later."""
    record: Record | None = None


Passes = Sequence[tuple[int, int]]
"""Each pass of the reader, and the number of the log after which it began."""


def stories(lines: Iterable[str], passes: Passes = ()) -> Iterator[Story]:
    """The facts of each job, from lines that are sorted."""
    floors = _floors(passes)
    for job, group in groupby(lines, itemgetter(slice(8))):
        yield _story(int(job), group, floors)


def _story(job: int, lines: Iterable[str], floors: dict[int, int]) -> Story:
    story = Story(job)
    ends: dict[tuple[int, int, str, int], int] = {}
    readings: list[tuple[int, int, Event]] = []
    for line in lines:
        _, letter, *rest = line.rstrip("\n").split("\t")
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
        elif letter == "V":
            reading, number, id, kind, previous, state, attempt, life, at, worker = rest
            event = Event(id, kind, previous, state, int(attempt), int(life), int(at), worker)
            readings.append((int(reading), int(number), event))
        elif letter == "Z":
            story.record = Record(rest[0], int(rest[1]), int(rest[2]))
    story.runs = [
        run._replace(ended_ms=ends.get((run.attempt, run.life, run.worker, run.pid)))
        for run in story.runs
    ]
    story.events, story.undone = _in_the_end(readings, floors)
    return story


def _in_the_end(
    readings: list[tuple[int, int, Event]], floors: dict[int, int]
) -> tuple[list[Event], list[Event]]:
    """What the log says after its last pass, and what only earlier passes have read."""
    latest = {event.id: (number, reading, event) for reading, number, event in readings}
    kept: list[tuple[int, Event]] = []
    undone = []
    for number, reading, event in latest.values():
        if number <= floors.get(reading, number):
            kept.append((number, event))
        else:
            undone.append(event)
    kept.sort(key=itemgetter(0))
    return [event for _, event in kept], undone


def _floors(passes: Passes) -> dict[int, int]:
    """For each pass, the lowest number after which a later pass began."""
    floors: dict[int, int] = {}
    lowest: int | None = None
    for reading, after in sorted(passes, reverse=True):
        if lowest is not None:
            floors[reading] = lowest
        lowest = after if lowest is None else min(lowest, after)
    return floors


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
