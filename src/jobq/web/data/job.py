"""One job: its values, its attempts, its log lines and what happened to it."""

from __future__ import annotations

from typing import Literal

from jobq.web.data.jobs import JobRow
from jobq.web.data.queues import LogEntry
from jobq.web.data.shown import Problem, Shown
from jobq.web.data.view import Shape, View

Part = Literal["arguments", "result", "progress", "saved"]
"""A value of a job that can be downloaded whole."""


class Ref(Shape):
    """The name of another job."""

    tenant: str
    queue: str
    id: str


class StepShown(Shape):
    """A step that the job has recorded."""

    name: str
    result: Shown
    attempt: int
    at_ms: int


class JobShown(Shape):
    """The page of a job."""

    row: JobRow
    now_ms: int
    arguments: Shown
    result: Shown | None
    progress: Shown | None
    percent: float | None
    """The progress from 0 to 100, if it is a number from 0 to 1, from 1 to 100, or has `percent`,
    or `done` and `total`."""
    saved: Shown | None
    problem: Problem | None
    """Why the job failed, or its last failed run, with its traceback."""
    attempts: tuple[Problem, ...]
    """The last ten failed runs, newest first."""
    steps: tuple[StepShown, ...]
    lines: tuple[str, ...]
    """The newest 200 log lines, oldest first, each cut at 2,000 characters."""
    lines_before: int
    """Log lines that are stored and not shown."""
    timeline: tuple[LogEntry, ...]
    """What happened to the job, oldest first, as far as its record and the log tell."""
    stalls: int
    reason: str | None
    """Why the job was cancelled."""
    meta: dict[str, str]
    options: dict[str, str]
    """Options of the call that are not the default, in words."""
    parents: tuple[Ref, ...]
    """Jobs that wait for this one. At most 100."""
    children: tuple[Ref, ...]
    """Jobs that this one waits for. At most 100."""
    more_parents: int
    more_children: int
    applies: tuple[str, ...]
    """Commands that apply to the job in its state: cancel, rerun, revive, promote, reprioritise,
    reschedule, update, remove, signal."""


class JobLive(Shape):
    """What a live stream sends about a job whenever it changes."""

    state: str
    attempt: int
    worker: str | None
    cancel_asked: bool
    started_ms: int | None
    finished_ms: int | None
    progress: Shown | None
    percent: float | None
    lines: tuple[str, ...]
    """Log lines since the last message."""
    ended: bool


async def job(view: View, tenant: str, queue: str, id: str) -> JobShown:
    """The page of one job. JobNotFound if there is no such job."""
    raise NotImplementedError


async def download(view: View, tenant: str, queue: str, id: str, part: Part) -> bytes:
    """A whole value as it is stored. InvalidJob if it is hidden or too large to download."""
    raise NotImplementedError
