"""jq-worker's options for several processes, and both sides of their supervision."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from jobq.api.queue import Queue
from jobq.api.worker import Worker
from jobq.cli.options import Size
from jobq.cli.probes import ProbeOptions, SharedMetrics, check_prometheus, supervisor_probes
from jobq.core.values.checks import check_id
from jobq.engine.identity import default_name
from jobq.errors import ConfigError
from jobq.executors.cpus import usable_cpus
from jobq.supervisor.changes import changed_files, check_reload
from jobq.supervisor.child import Recycling, Supervised
from jobq.supervisor.process import Order, Report
from jobq.supervisor.supervisor import Supervisor

log = logging.getLogger("jobq.worker")

_MAX_PROCESSES = 1000
"""More than any machine has cores. A larger number is a typing error."""


# ── options ───────────────────────────────────────────────────────────────────────────────────────

if TYPE_CHECKING:
    _Number = click.ParamType[int]
else:  # generic since click 8.2 only
    _Number = click.ParamType


class _Processes(_Number):
    name = "processes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if value == "auto":
            return usable_cpus()
        try:
            number = int(value)
        except (TypeError, ValueError):
            number = 0
        if not 1 <= number <= _MAX_PROCESSES:
            self.fail(f"{value!r} is not a number from 1 to {_MAX_PROCESSES}, or auto", param, ctx)
        return number


_OPTIONS = (
    click.option(
        "--processes",
        type=_Processes(),
        metavar="N|auto",
        help="Worker processes to run under a supervisor, each with its own --concurrency; "
        "auto: one per CPU. A process that dies is restarted. SIGHUP replaces all processes one "
        "by one, e.g. after a deploy. Default: one worker without a supervisor.",
    ),
    click.option(
        "--max-jobs",
        type=click.IntRange(min=1),
        metavar="N",
        help="Replace a worker process after it has run about N jobs. It works until its "
        "replacement is up, and then finishes its running jobs.",
    ),
    click.option(
        "--max-memory",
        type=Size(),
        metavar="SIZE",
        help="Replace a worker process that uses more memory than this, e.g. 512M. Memory is "
        "checked when jobs end.",
    ),
    click.option(
        "--reload",
        is_flag=True,
        help="Replace the worker processes when a Python file in the current directory changes. "
        "For development; needs jobq[reload].",
    ),
)


def supervision_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that start a supervisor."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


# ── the supervisor's process ──────────────────────────────────────────────────────────────────────


def supervise(
    *, processes: int, name: str | None, drain_s: float, reload: bool, probes: ProbeOptions
) -> int:
    """Run this command line in several worker processes until stopped. Returns the exit code."""
    if reload:
        check_reload()
    base = default_name() if name is None else name
    check_id(f"{base}-{2 * _MAX_PROCESSES}", "name")  # with the longest suffix
    # The same interpreter, options and program: in a worker process it finds its supervisor.
    command = [sys.executable, *sys.orig_argv[1:]]

    async def run(metrics: SharedMetrics | None) -> int:
        supervisor = Supervisor(
            command,
            processes=processes,
            name=base,
            drain_s=drain_s,
            folder=_here(),
            changes=changed_files if reload else None,
            on_end=None if metrics is None else metrics.ended,
        )
        with supervisor_probes(probes, supervisor, metrics):
            return await supervisor.run()

    if probes.metrics_port is None:
        return asyncio.run(run(None))
    check_prometheus()
    with SharedMetrics() as metrics:
        return asyncio.run(run(metrics))


def _here() -> Path:
    """The current directory, by the name that the shell has for it.

    If that is a symbolic link which a deploy has switched, processes start in the new folder.
    """
    here = Path.cwd()
    named = os.environ.get("PWD")
    try:
        return Path(named) if named and Path(named).samefile(here) else here
    except OSError:
        return here


# ── a worker process ──────────────────────────────────────────────────────────────────────────────


class Link:
    """Connects a worker with the supervisor of its process."""

    def __init__(
        self,
        supervised: Supervised,
        worker: Worker,
        *,
        max_jobs: int | None,
        max_memory: int | None,
    ) -> None:
        self._supervised = supervised
        self._worker = worker
        self._recycling = Recycling(max_jobs=max_jobs, max_memory=max_memory)
        self._loop = asyncio.get_running_loop()
        supervised.obey(self._obey)

    def up(self) -> None:
        """The worker claims jobs."""
        self._supervised.report(Report.UP)

    def settled(self, jobs: int) -> None:
        """Ask for a replacement once the process has reached its limit."""
        why = self._recycling.ended(jobs)
        if why is not None:
            log.info("worker %s asks to be replaced: %s", self._worker.name, why)
            self._supervised.report(Report.FULL)

    def shut_down(self) -> None:
        """An operator stops the worker."""
        self._supervised.report(Report.SHUT_DOWN)

    def _obey(self, order: Order) -> None:
        release = order is Order.RELEASE
        try:
            self._loop.call_soon_threadsafe(
                lambda: self._worker._orders.supervised(release=release)
            )
        except RuntimeError:
            pass  # the loop is closed: the worker has stopped


def check_shared(queues: Sequence[Queue]) -> None:
    """Refuse queues in a store that only one process can see."""
    for queue in queues:
        if queue.url.startswith("memory:"):
            raise ConfigError(
                f"queue {queue.name} is in {queue.url}, which is visible in one process only: "
                "worker processes need a store that they share, e.g. sqlite:///jobs.db"
            )
