"""jq-worker's options --metrics-port and --health-port, for one process or several."""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import TimeoutError as NoReply
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click

from jobq.api.queue import Queue
from jobq.api.worker import Worker
from jobq.console.probes import Answer, Probes, Pulse, Route, answer, healthz
from jobq.core.values.printable import one_line, redacted
from jobq.errors import ConfigError
from jobq.supervisor.supervisor import Supervisor

# Adds up the metrics of a supervisor's processes, by the multiprocess mode of prometheus_client.
#
# In that mode, each process writes its metrics to files in a folder, which are read on a scrape.
# What a process has counted must outlive it, so its files stay. A supervisor that replaces
# processes often would collect thousands of them: the sums of processes that have ended are moved
# into one file.

_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
"""Where prometheus_client finds the folder, in each process that is started meanwhile."""
_SUMS = ("counter", "histogram", "summary")
"""The kinds of metrics whose values are added up. Each has a file per process, `counter_PID.db`."""
_ENDED = 0
"""Stands for the processes that have ended. No process has this id."""


class SharedMetrics:
    """The folder. It is removed at the end, unless the operator has named it."""

    def __enter__(self) -> SharedMetrics:
        given = os.environ.get(_VARIABLE)
        self._own = given is None
        self._folder = Path(given or tempfile.mkdtemp(prefix="jobq-metrics-"))
        os.environ[_VARIABLE] = str(self._folder)
        self._lock = threading.Lock()  # a scrape must not see a process in both files
        return self

    def __exit__(self, *_: object) -> None:
        if self._own:
            del os.environ[_VARIABLE]
            shutil.rmtree(self._folder, ignore_errors=True)

    def ended(self, pid: int) -> None:
        """Keep what a process has counted, and forget its gauges."""
        from prometheus_client.multiprocess import mark_process_dead

        with self._lock:
            mark_process_dead(pid, str(self._folder))  # type: ignore[no-untyped-call]
            for kind in _SUMS:
                self._move(self._file(kind, pid), self._file(kind, _ENDED))

    def rendered(self) -> tuple[bytes, str]:
        """The metrics of all processes as text, and its content type."""
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
        from prometheus_client.multiprocess import MultiProcessCollector

        registry = CollectorRegistry()
        MultiProcessCollector(registry, str(self._folder))  # type: ignore[no-untyped-call]
        with self._lock:
            return generate_latest(registry), CONTENT_TYPE_LATEST

    def _file(self, kind: str, pid: int) -> Path:
        return self._folder / f"{kind}_{pid}.db"

    def _move(self, source: Path, target: Path) -> None:
        """Add the values of one file to those of another, and remove it."""
        from prometheus_client.mmap_dict import MmapedDict

        if not source.exists():
            return
        sums = MmapedDict(str(target))  # type: ignore[no-untyped-call]
        for key, value, *_ in MmapedDict.read_all_values_from_file(str(source)):  # type: ignore[no-untyped-call]
            before, _ = sums.read_value(key)  # type: ignore[no-untyped-call]
            sums.write_value(key, before + value, 0.0)  # type: ignore[no-untyped-call]
        sums.close()  # type: ignore[no-untyped-call]
        source.unlink()


_READY_S = 2.0
"""Seconds that a store has to respond to /readyz, and to tell /metrics about its queues."""


DEFAULT_METRICS_PORT = 9091
DEFAULT_HEALTH_PORT = 8081
"""The ports of a worker that works for a jq-server. The server's own are 9090 and 8080. A second
worker on the same machine finds them taken, and serves neither unless it is given other ports."""


class ProbeOptions(NamedTuple):
    """What the command line says. None: off."""

    metrics_port: int | None
    health_port: int | None
    host: str
    optional: frozenset[int] = frozenset()
    """Ports that nobody has chosen: the worker goes on without one that is taken."""

    @staticmethod
    def of(
        metrics_port: int | None, health_port: int | None, host: str, *, server: bool
    ) -> ProbeOptions:
        """The ports of a worker. One that works for a jq-server (`server`) has default ports.

        0 means off."""
        given = {"metrics": metrics_port, "health": health_port}
        defaults = {"metrics": DEFAULT_METRICS_PORT, "health": DEFAULT_HEALTH_PORT}
        if not has_prometheus():
            del defaults["metrics"]
        optional = {n: port for n, port in defaults.items() if server and given[n] is None}
        ports = {name: optional.get(name, port) or None for name, port in given.items()}
        return ProbeOptions(ports["metrics"], ports["health"], host, frozenset(optional.values()))

    def routes(
        self, *, metrics: Callable[[], Route], health: Callable[[], dict[str, Route]]
    ) -> dict[int, dict[str, Route]]:
        """The routes of each port. Both ports may be the same."""
        found: dict[int, dict[str, Route]] = {}
        if self.metrics_port is not None:
            found.setdefault(self.metrics_port, {})["/metrics"] = metrics()
        if self.health_port is not None:
            found.setdefault(self.health_port, {}).update(health())
        return found


_OPTIONS = (
    click.option(
        "--metrics-port",
        type=click.IntRange(0, 65535),
        metavar="PORT",
        help="Serve /metrics for Prometheus on this port: the runs of this worker, and the jobs of "
        "its queues. A supervisor adds up the runs of its processes. Needs jobq[prometheus]. "
        "0 turns it off. Default: off; with a jq-server, 9091 if that port is free.",
    ),
    click.option(
        "--health-port",
        type=click.IntRange(0, 65535),
        metavar="PORT",
        help="Serve /healthz (the process works) and /readyz (it claims jobs, and its stores "
        "respond) on this port, which may be the same. 0 turns it off. Default: off; with a "
        "jq-server, 8081 if that port is free.",
    ),
    click.option(
        "--probe-host",
        metavar="ADDRESS",
        default="0.0.0.0",
        show_default=True,
        help="Address on which --metrics-port and --health-port listen.",
    ),
)


def probe_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def has_prometheus() -> bool:
    """Whether the library is installed."""
    try:
        import prometheus_client  # noqa: F401 - only whether it is there
    except ImportError:
        return False
    return True


def check_prometheus() -> None:
    """ConfigError if the library is not installed."""
    if not has_prometheus():
        raise ConfigError(
            "--metrics-port needs the package prometheus_client: pip install 'jobq[prometheus]'"
        )


# ── a worker ──────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def worker_probes(options: ProbeOptions, worker: Worker, queues: Sequence[Queue]) -> Iterator[None]:
    """Serve the probes of a worker that runs in this event loop."""
    loop = asyncio.get_running_loop()
    routes = options.routes(
        metrics=lambda: _metrics(queues, loop),
        health=lambda: {"/healthz": healthz(Pulse(loop)), "/readyz": _readyz(worker, queues, loop)},
    )
    with Probes(routes, host=options.host, optional=options.optional):
        yield


def _metrics(queues: Sequence[Queue], loop: asyncio.AbstractEventLoop) -> Route:
    from jobq import prometheus

    def route() -> Answer:
        asked = asyncio.run_coroutine_threadsafe(prometheus.queue_metrics(*queues), loop)
        try:
            found = asked.result(_READY_S)
        except NoReply:  # what this process has counted is still worth a reply
            asked.cancel()
            found = []
        return Answer(200, prometheus.rendered(found), prometheus.CONTENT_TYPE)

    return route


def _readyz(worker: Worker, queues: Sequence[Queue], loop: asyncio.AbstractEventLoop) -> Route:
    # One queue of each store is enough.
    stores = list({queue.url: queue for queue in queues}.values())

    async def ask() -> None:
        for queue in stores:
            await queue.counts()

    def route() -> Answer:
        if worker._ending is not None:
            return answer("the worker stops")
        if not worker.running:
            return answer("the worker waits for its store")
        if worker.paused:
            return answer("the worker is paused")
        asked = asyncio.run_coroutine_threadsafe(ask(), loop)
        try:
            asked.result(_READY_S)
        except NoReply:
            asked.cancel()
            return answer(f"the store did not respond within {_READY_S:g} s")
        except Exception as error:
            return answer(redacted(one_line(str(error))))
        return answer(None)

    return route


# ── a supervisor ──────────────────────────────────────────────────────────────────────────────────


def supervisor_probes(
    options: ProbeOptions, supervisor: Supervisor, metrics: SharedMetrics | None
) -> Probes:
    """The probes of a supervisor that runs in this event loop."""
    loop = asyncio.get_running_loop()
    routes = options.routes(
        metrics=lambda: _added_up(metrics),
        health=lambda: {
            "/healthz": healthz(Pulse(loop)),
            "/readyz": lambda: answer(supervisor.problem()),
        },
    )
    return Probes(routes, host=options.host, optional=options.optional)


def _added_up(metrics: SharedMetrics | None) -> Route:
    assert metrics is not None
    return lambda: Answer(200, *metrics.rendered())
