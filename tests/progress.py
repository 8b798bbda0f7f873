"""What a long run shows: how many tests are done and left, and which are slow just now."""

from __future__ import annotations

import shutil
import sys
import time

import pytest

EVERY_S = 30.0
"""Seconds between two lines where there is no terminal."""
REFRESH_S = 0.5
"""Seconds between two changes of the line in a terminal."""
SLOW_S = 10.0
"""A test that has run for so long is shown."""


class Progress:
    """One line instead of thousands of dots, and a line for every failure as it happens."""

    def __init__(self) -> None:
        self._out = sys.stdout
        self._live = self._out.isatty()
        self._began = self._shown = time.monotonic()
        self._total = self._done = self._failed = 0
        self._running: dict[str, float] = {}

    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        """Every worker collects the same tests."""
        self._total = len(ids)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A worker has begun a test."""
        self._running[nodeid] = time.monotonic()
        self._show()

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """A worker has ended one."""
        self._running.pop(nodeid, None)
        self._done += 1
        self._show()

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(
        self, report: pytest.CollectReport | pytest.TestReport
    ) -> tuple[str, str, str] | None:
        """Print no letter for a test, and a line for one that failed."""
        if hasattr(report, "wasxfail"):
            return None
        if report.failed:
            self._failed += 1
            self._line(f"FAILED {report.nodeid} ({report.when})", keep=True)
            return "failed" if report.when == "call" else "error", "", ""
        if report.skipped:
            return "skipped", "", ""
        return ("passed" if report.when == "call" else ""), "", ""

    def pytest_sessionfinish(self) -> None:
        """The last line."""
        self._line(self._said(), keep=True)

    def _show(self) -> None:
        now = time.monotonic()
        if now - self._shown >= (REFRESH_S if self._live else EVERY_S):
            self._shown = now
            self._line(self._said(), keep=not self._live)

    def _said(self) -> str:
        gone = time.monotonic() - self._began
        said = [f"{self._done:,} of {self._total:,} tests", f"{_minutes(gone)} gone"]
        if 0 < self._done < self._total:
            left = gone * (self._total - self._done) / self._done
            said.append(f"about {_minutes(left)} left")
        if self._failed:
            said.append(f"{self._failed} failed")
        nodeid, since = min(self._running.items(), key=lambda pair: pair[1], default=("", 0.0))
        if nodeid and time.monotonic() - since >= SLOW_S:
            said.append(f"{time.monotonic() - since:.0f} s in {nodeid}")
        return " · ".join(said)

    def _line(self, text: str, *, keep: bool) -> None:
        if self._live:
            width = shutil.get_terminal_size().columns - 1
            self._out.write(f"\r\033[K{text if keep else text[:width]}")
        else:
            self._out.write(text)
        self._out.write("\n" if keep else "")
        self._out.flush()


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
