"""What jq-worker logs, and what it stores about failures."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.kit import Ctl

Start = Callable[..., "subprocess.Popen[str]"]
Until = Callable[[Callable[[], Any], str], Any]

FORGED = "no\n2026-01-01 00:00:00,000 INFO    forged\x1b[2J\x9b2J\u2028"


def stopped(worker: subprocess.Popen[str]) -> list[str]:
    """Ask the worker to stop and return its log."""
    worker.send_signal(signal.SIGTERM)
    output, _ = worker.communicate(timeout=30)
    assert worker.returncode == 0, output
    return output.split("\n")[:-1]


def test_the_stored_traceback_contains_only_the_handlers_error(
    ctl: Ctl, tmp_path: Path, start_worker: Start
) -> None:
    (tmp_path / "uvloop.py").write_text("raise ImportError('as on a machine without it')")
    ctl("job", "submit", "boom", "-q", "shop", "--id", "b")
    start_worker(
        PYTHONPATH=os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    )
    ctl("job", "wait", "b", "--for", "30s", code=1)
    traceback = ctl.json("job", "status", "b")["failure"]["traceback"]
    assert traceback.count("Traceback (most recent call last)") == 1
    assert "in boom" in traceback.splitlines()[1]
    assert traceback.endswith("ValueError: no such tenant\n")


def test_every_job_is_logged_in_lines_that_nobody_can_forge(ctl: Ctl, start_worker: Start) -> None:
    ctl("job", "submit", "add", "-q", "shop", "--id", "sum", "--payload", "[2, 3]")
    ctl("job", "submit", "boom", "-q", "shop", "--id", "b", "--payload", json.dumps([FORGED]))
    worker = start_worker()
    ctl("job", "wait", "sum", "b", "--for", "30s", code=1)
    log = stopped(worker)
    assert any("INFO    job sum (add) of queue shop completed after 0." in line for line in log)
    (failed,) = (
        n
        for n, line in enumerate(log)
        if "ERROR" in line and "job b (boom) of queue shop failed for good" in line
    )
    assert r"ValueError: no\n2026-01-01" in log[failed]
    assert "    Traceback (most recent call last):" in log[failed:]
    assert all(line.startswith(("20", "    ")) for line in log)
    assert not any(line.endswith("forged") and not line.startswith("    ") for line in log)
    assert not any(set("\x1b\x9b\u2028") & set(line) for line in log)


def test_json_logs_have_one_object_per_line_with_the_jobs_fields(
    ctl: Ctl, start_worker: Start
) -> None:
    ctl("job", "submit", "add", "-q", "shop", "--id", "sum", "--payload", "[2, 3]")
    ctl("job", "submit", "boom", "-q", "shop", "--id", "b", "--payload", json.dumps([FORGED]))
    worker = start_worker("--log-format", "json", "--log-level", "trace")
    ctl("job", "wait", "sum", "b", "--for", "30s", code=1)
    log = stopped(worker)
    assert not any(set("\x1b\x9b\u2028") & set(line) for line in log)
    records = [json.loads(line) for line in log]
    about = {(r["job_id"], r["level"]): r for r in records if "job_id" in r}
    assert set(about) == {("sum", "debug"), ("sum", "info"), ("b", "debug"), ("b", "error")}
    end = about["sum", "info"]
    assert (end["queue"], end["task"], end["attempt"], end["outcome"]) == (
        "shop",
        "add",
        1,
        "completed",
    )
    assert end["duration_ms"] > 0
    assert about["b", "error"]["error"]["type"] == "ValueError"
    assert "in boom" in about["b", "error"]["error"]["traceback"]
    assert any(r["level"] == "trace" and "claimed" in r["message"] for r in records)


@pytest.mark.parametrize(("args", "logged_info"), [((), True), (("--log-level", "warning"), False)])
def test_an_application_that_configures_logging_keeps_its_format(
    ctl: Ctl, start_worker: Start, args: tuple[str, ...], logged_info: bool
) -> None:
    ctl("job", "submit", "add", "-q", "shop", "--id", "sum", "--payload", "[2, 3]")
    worker = start_worker("loggingapp:shop", *args, "--log-format", "json", app=None)
    ctl("job", "wait", "sum", "--for", "30s")
    log = stopped(worker)
    assert (
        any(line.startswith("OURS INFO job sum (add) of queue shop completed") for line in log)
        is logged_info
    )
    assert all(line.startswith("OURS ") for line in log)


def test_a_signal_during_the_exit_does_not_kill_the_process(
    ctl: Ctl, tmp_path: Path, start_worker: Start, until: Until
) -> None:
    worker = start_worker(app="slowexitapp:shop", JQ_TEST_FOLDER=str(tmp_path))
    until(
        lambda: (tmp_path / "jobs.db").exists() and ctl.json("worker", "list"),
        "the worker to be there",
    )
    worker.send_signal(signal.SIGTERM)
    until((tmp_path / "ending").exists, "the process to end")
    worker.send_signal(signal.SIGTERM)
    worker.send_signal(signal.SIGINT)
    (tmp_path / "gone").touch()
    output, _ = worker.communicate(timeout=30)
    assert worker.returncode == 0, output
    assert "Traceback" not in output
