"""`jq-ctl top`: what it shows, and how it behaves on a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from io import StringIO

import pytest
from rich.console import Console

from jobq.cli.ctl.queue_view import QueueSummary
from jobq.cli.ctl.top import Flow, Snapshot, top_view
from jobq.core.records.jobs import Failure, JobRecord, QueueName
from jobq.core.records.queues import MinuteRecord, QueueRecord, StatsRecord
from jobq.core.records.states import State
from jobq.core.records.workers import WorkerRecord
from tests import waiting
from tests.cli.kit import Ctl

NOW = 1_700_000_000_000
MAIL = QueueName("default", "mail")


# ── what is shown ─────────────────────────────────────────────────────────────────────────────────


def summary(name: str, **counts: int) -> QueueSummary:
    queue = QueueName("default", name)
    stats = StatsRecord(queue=queue, counts={State(s): n for s, n in counts.items()}, workers=1)
    return QueueSummary(QueueRecord(queue=queue), stats, 0.0)


def failed(id: str, message: str) -> JobRecord:
    failure = Failure(reason="error", type="ValueError", message=message)
    return JobRecord(
        queue=MAIL, id=id, name="send", state=State.FAILED, payload=b"", finished_ms=NOW - 5_000,
        created_ms=NOW, failure=failure,
    )  # fmt: skip


def worker(name: str) -> WorkerRecord:
    return WorkerRecord(
        name=name, host="web", pid=1, queues=(MAIL,), concurrency=10, active=4,
        started_ms=NOW - 60_000, seen_ms=NOW,
    )  # fmt: skip


def drawn(seen: Snapshot, width: int = 120, height: int | None = None) -> list[str]:
    """The lines of the screen."""
    out = StringIO()
    Console(file=out, width=width, height=height or 100).print(top_view(seen, height))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def snapshot(**fields: object) -> Snapshot:
    given: dict[str, object] = {
        "store": "sqlite:///jobs.db",
        "tenant": "default",
        "now_ms": NOW,
        "queues": [summary("calm"), summary("mail", waiting=7, failed=2)],
        "rates": {MAIL: {"accepted": 120.4, "completed": 3.25, "failed": 0.0}},
        "workers": [worker("web-1")],
        "failures": [failed("m-1", "no such\x1b[31m address")],
        **fields,
    }
    return Snapshot(**given)  # type: ignore[arg-type]


def test_the_screen_shows_queues_workers_and_failures_the_busiest_first() -> None:
    lines = drawn(snapshot())
    assert "1 worker, 4 of 10 slots busy" in lines[0]
    mail = next(n for n, line in enumerate(lines) if line.startswith("mail"))
    calm = next(n for n, line in enumerate(lines) if line.startswith("calm"))
    assert mail < calm
    assert lines[mail].split()[2:9] == ["7", "0", "0", "2", "120", "3.2", "0"]
    (working,) = [line.split() for line in lines if line.startswith("web-1")]
    assert working[:3] == ["web-1", "running", "4/10"]
    (failure,) = [line for line in lines if "m-1" in line]
    assert "ValueError: no such" in failure
    assert "\x1b" not in failure


def test_a_small_screen_is_never_exceeded_and_queues_get_the_most_room() -> None:
    seen = snapshot(
        queues=[summary(f"q{n}", waiting=n) for n in range(50)],
        workers=[worker(f"web-{n}") for n in range(50)],
        failures=[failed(f"m-{n}", "boom") for n in range(10)],
    )
    for height in (20, 24, 40, 100):
        lines = drawn(seen, height=height)
        assert len(lines) <= height, height
        shown = ["\n".join(lines).count(word) for word in ("\nq", "\nweb-", "boom")]
        assert shown[0] >= shown[1] >= 3
        assert shown[2] >= 3


def test_an_unavailable_store_and_hidden_queues_are_told() -> None:
    lines = drawn(snapshot(problem="the store is unavailable", more_queues=3))
    assert "3 queues not shown" in lines[0]
    assert lines[1] == "! the store is unavailable"


def test_rates_are_differences_between_two_looks() -> None:
    def minute(at: int, accepted: int) -> MinuteRecord:
        return MinuteRecord(minute_ms=at, accepted=accepted)

    first = Flow.of([minute(0, 100), minute(60_000, 20)], 10.0)
    assert first.since(None)["accepted"] == 1.0  # an average of two minutes
    second = Flow.of([minute(60_000, 50), minute(120_000, 10)], 14.0)
    assert second.since(first)["accepted"] == 10.0


# ── without a terminal ────────────────────────────────────────────────────────────────────────────


def test_a_pipe_gets_one_document_per_look(ctl: Ctl) -> None:
    ctl("job", "submit", "add", "-q", "shop")
    (line,) = ctl("top", "--times", "1", "-o", "json").stdout.splitlines()
    seen = json.loads(line)
    assert seen["queues"][0]["counts"]["waiting"] == 1
    assert seen["queues"][0]["rates"]["accepted"] > 0
    assert seen["workers"] == seen["failures"] == []
    ctl("top", "nonsense", "--times", "1", code=1)


# ── on a terminal ─────────────────────────────────────────────────────────────────────────────────


class Screen:
    """A terminal in which `jq-ctl top` runs."""

    def __init__(self, url: str) -> None:
        self.ours, self.theirs = pty.openpty()
        self.resize(30, 100)
        self.before = termios.tcgetattr(self.ours)
        command = [sys.executable, "-m", "jobq.cli.ctl", "--url", url, "top", "--every", "100ms"]
        environment = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            command,
            stdin=self.theirs,
            stdout=self.theirs,
            stderr=self.theirs,
            env={**environment, "TERM": "xterm-256color"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.set_blocking(self.ours, False)
        self.text = ""

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def shows(self, words: str) -> bool:
        """Whether the words have appeared since the last `forget`."""
        try:
            self.text += os.read(self.ours, 1 << 20).decode(errors="replace")
        except BlockingIOError:
            pass
        return words in self.text

    def forget(self) -> None:
        self.text = ""

    def type(self, keys: str) -> None:
        os.write(self.ours, keys.encode())

    def ended(self) -> bool:
        self.shows("")
        return self.process.poll() is not None


@pytest.fixture
def screen(ctl: Ctl, url: str) -> Iterator[Screen]:
    ctl("job", "submit", "add", "-q", "shop")
    opened = Screen(url)
    yield opened
    opened.process.kill()
    opened.process.wait()
    os.close(opened.ours)
    os.close(opened.theirs)


def test_the_screen_follows_the_store_and_the_window_and_q_leaves_the_terminal_as_it_was(
    screen: Screen, ctl: Ctl
) -> None:
    waiting.wait_until(lambda: screen.shows("1 waiting"), "the first screen")
    assert "DELAYED" in screen.text
    assert "\x1b[?1049h" in screen.text  # the alternate screen
    ctl("job", "submit", "add", "-q", "shop")
    waiting.wait_until(lambda: screen.shows("2 waiting"), "the new job")
    screen.forget()
    screen.resize(30, 80)
    screen.process.send_signal(signal.SIGWINCH)
    waiting.wait_until(lambda: screen.shows("columns that did not fit"), "the narrow screen")
    screen.type("xq")
    waiting.wait_until(screen.ended, "the end")
    assert screen.process.returncode == 0
    assert screen.shows("\x1b[?1049l")
    assert termios.tcgetattr(screen.ours) == screen.before


def test_ctrl_c_ends_it_with_the_usual_exit_code(screen: Screen) -> None:
    waiting.wait_until(lambda: screen.shows("1 waiting"), "the first screen")
    screen.type("\x03")
    waiting.wait_until(screen.ended, "the end")
    assert screen.process.returncode == 130
    assert termios.tcgetattr(screen.ours) == screen.before
