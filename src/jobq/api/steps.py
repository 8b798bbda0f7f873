"""One call of `current_job().step(…)`, from its beginning until it is recorded."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar, Token
from types import TracebackType
from typing import Any

from jobq.api.task import Task
from jobq.core import steps
from jobq.core.checks import shown
from jobq.core.codec import get_codec
from jobq.core.control import Reject
from jobq.core.records import JobKey, Steps
from jobq.core.returns import returns_of
from jobq.core.steps import StepRecord
from jobq.errors import InvalidJob
from jobq.executors.running import Running


class Step:
    """A step of a run. While its function runs, it is the context `with step:`.

    `record` is None if the function has to be called.
    """

    def __init__(self, run: Running, name: str, fn: Callable[..., Any]) -> None:
        if not callable(fn):
            raise InvalidJob(
                f"step({shown(name)}, {shown(fn)}): the second argument must be a function. Give "
                "its arguments behind it, and do not call it"
            )
        self._run = run
        self.name, self.record = run.steps.begin(name)
        self._returns = fn._definition.returns if isinstance(fn, Task) else returns_of(fn)
        self._outer = current_step(run)
        self._children: list[JobKey] = []
        self._token: Token[Step] | None = None
        if self.record is None:
            run.check(self.name)
        else:
            run.children.add_of_step(self.name, self.record.children)
            for child in self.record.children:
                if self._outer is not None:
                    self._outer.added(child)

    def __enter__(self) -> None:
        self._token = _step.set(self)

    def __exit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        assert self._token is not None
        _step.reset(self._token)

    def added(self, child: JobKey) -> None:
        """A child job was added inside this step."""
        self._children.append(child)
        if self._outer is not None:
            self._outer.added(child)

    def recorded(self, value: Any) -> Steps:
        """The record of the step, whose function has returned this value.

        Raises Reject if the value cannot be recorded: a retry would repeat what the step has done.
        """
        run = self._run
        try:
            record = StepRecord(
                n=len(run.steps),
                result=run.encode(value, f"the result of step {self.name!r}"),
                attempt=run.lease.attempt,
                at_ms=run.now_ms,
                children=tuple(self._children),
            )
            packed: Steps = ((self.name, steps.pack(record)),)
            run.steps.admit(packed)
        except Exception as error:  # a custom codec may raise anything
            raise Reject(
                f"step {self.name!r} has run, and its result cannot be recorded: {error}. The job "
                "fails without a retry, because a retry would repeat the step"
            ) from error
        self.record = record
        return packed

    def result(self) -> Any:
        """The result as every run gets it: encoded, and decoded by the function's annotation."""
        assert self.record is not None
        return get_codec(self._run.lease.codec).decode(self.record.result, self._returns)


_step: ContextVar[Step] = ContextVar("jobq_step")


def current_step(run: Running) -> Step | None:
    """The step of this run that the calling code is part of."""
    step = _step.get(None)
    # A worker that was started inside a step inherits the context of that step.
    return step if step is not None and step._run is run else None
