"""Adds up the metrics of a supervisor's processes, by the multiprocess mode of prometheus_client.

In that mode, each process writes its metrics to files in a folder, which are read on a scrape. What
a process has counted must outlive it, so its files stay. A supervisor that replaces processes often
would collect thousands of them: the sums of processes that have ended are moved into one file.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from pathlib import Path

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
