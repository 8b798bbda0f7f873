"""Middleware made of one function: `Queue(middleware=[on_failure(alert)])`.

The functions may be plain or async. They run in the worker's event loop, so a plain one must be
short. For a batch task they are called once per job.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from typing import Any

from jobq.api.current import CurrentJob
from jobq.api.ending import Ended, endings_of
from jobq.api.middleware import CallNext, Middleware
from jobq.core.checks import shown
from jobq.errors import ConfigError

log = logging.getLogger("jobq")


def on_start(function: Callable[[CurrentJob], object]) -> Middleware:
    """Call `function(job)` before each run. What it raises, the run has raised."""
    _check(function, "on_start")

    async def middleware(job: CurrentJob, call_next: CallNext) -> object:
        for each in job.batch or (job,):
            await _result(function(each))
        return await call_next(job)

    return middleware


def on_success(function: Callable[[CurrentJob, Any], object]) -> Middleware:
    """Call `function(job, result)` after each run that returned. What it raises, the run has
    raised: the job fails or is retried."""
    _check(function, "on_success")

    async def middleware(job: CurrentJob, call_next: CallNext) -> object:
        result: Any = await call_next(job)
        if not job.batch:
            await _result(function(job, result))
        elif isinstance(result, list | tuple):  # else the run fails: it needs a result per job
            for each, one in zip(job.batch, result, strict=False):
                if not isinstance(one, BaseException):
                    await _result(function(each, one))
        return result

    return middleware


def on_failure(
    function: Callable[[CurrentJob, BaseException], object], *, final: bool = False
) -> Middleware:
    """Call `function(job, error)` after each run that failed. With `final`, only if the job has
    failed for good.

    Snooze, RateLimited, waits and cancels are not failures. A timeout is a TimeoutError. The error
    of a run in another process is a JobFailed that describes it. What the function raises is
    logged, so that it does not replace the job's own error.
    """
    _check(function, "on_failure")
    outcomes = ("failed",) if final else ("failed", "retried")

    async def tell(ended: Ended) -> None:
        error, failure = ended.error, ended.ending.failure
        if ended.ending.outcome not in outcomes or failure is None:
            return
        if error is None or (
            isinstance(error, asyncio.CancelledError) and failure.reason == "timeout"
        ):
            error = TimeoutError(failure.message)
        try:
            await _result(function(ended.job, error))
        except Exception:
            log.exception("on_failure: %s raised an error", shown(function))

    async def middleware(job: CurrentJob, call_next: CallNext) -> object:
        try:
            result = await call_next(job)
        except BaseException as error:
            for ended in endings_of(job, error=error):
                await tell(ended)
            raise
        for ended in endings_of(job, result=result):  # of a batch; or it returned after a timeout
            await tell(ended)
        return result

    return middleware


async def _result(value: Any) -> None:
    if inspect.isawaitable(value):
        await value


def _check(function: object, name: str) -> None:
    if not callable(function):
        raise ConfigError(f"{name}({shown(function)}): give it a function")
