"""`chain`, `group` and `chord` for code without an event loop.

    from jobq import sync

    job = sync.chain(load, send, first=(7,))

Everything else that blocks is reached through `.sync` of a queue, a task or a job.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from jobq.api.flow import Flow, SyncFlow, flow_of_chain, flow_of_chord, flow_of_group
from jobq.api.job import Job, SyncJob
from jobq.api.queue import SyncQueue
from jobq.api.task import SyncTask, Task
from jobq.client.portal import Portal, portal, run

__all__ = [
    "Portal",
    "SyncFlow",
    "SyncJob",
    "SyncQueue",
    "SyncTask",
    "chain",
    "chord",
    "group",
    "portal",
    "run",
]

R = TypeVar("R")


def chain(*steps: Task[..., Any], first: tuple[Any, ...] = ()) -> SyncJob[Any]:
    """See `jobq.chain`."""
    return _submitted(*flow_of_chain(steps, first))


def group(task: Task[..., R], calls: Iterable[tuple[Any, ...]]) -> SyncJob[list[R]]:
    """See `jobq.group`. A generator is read in the caller's thread."""
    return _submitted(*flow_of_group(task, calls))


def chord(
    task: Task[..., R], calls: Iterable[tuple[Any, ...]], then: Task[..., Any]
) -> SyncJob[Any]:
    """See `jobq.chord`. A generator is read in the caller's thread."""
    return _submitted(*flow_of_chord(task, calls, then))


def _submitted(flow: Flow, job: Job[R]) -> SyncJob[R]:
    flow._submit_blocking()
    return SyncJob(job)
