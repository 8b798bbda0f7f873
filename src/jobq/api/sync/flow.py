"""SyncFlow, and `chain`, `group` and `chord` with blocking calls; `jobq.sync` re-exports them."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar

from jobq.api import flow as flows
from jobq.api.flow import Flow
from jobq.api.job import Job
from jobq.api.sync.job import SyncJob
from jobq.api.task import Task

P = ParamSpec("P")
R = TypeVar("R")


class SyncFlow:
    """A flow with blocking methods: `with queue.sync.flow() as flow:`."""

    __slots__ = ("_flow", "id")

    def __init__(self, flow: Flow) -> None:
        self._flow = flow
        self.id = flow.id

    def add(self, task: Task[P, R], *args: P.args, **kwargs: P.kwargs) -> SyncJob[R]:
        """See `Flow.add`."""
        return SyncJob(self._flow.add(task, *args, **kwargs))

    def submit(self) -> None:
        """See `Flow.submit`."""
        self._flow._submit_blocking()

    def __enter__(self) -> Self:
        """Nothing is stored before the block ends."""
        return self

    def __exit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Submit the flow, unless the block raised an error."""
        if t is None:
            self.submit()


def chain(*steps: Task[..., Any], first: tuple[Any, ...] = ()) -> SyncJob[Any]:
    """See `jobq.chain`."""
    return _submitted(*flows.flow_of_chain(steps, first))


def group(task: Task[..., R], calls: Iterable[tuple[Any, ...]]) -> SyncJob[list[R]]:
    """See `jobq.group`. A generator is read in the caller's thread."""
    return _submitted(*flows.flow_of_group(task, calls))


def chord(
    task: Task[..., R], calls: Iterable[tuple[Any, ...]], then: Task[..., Any]
) -> SyncJob[Any]:
    """See `jobq.chord`. A generator is read in the caller's thread."""
    return _submitted(*flows.flow_of_chord(task, calls, then))


def _submitted(flow: Flow, job: Job[R]) -> SyncJob[R]:
    flow._submit_blocking()
    return SyncJob(job)
