"""The demo keeps its promise: a worker is killed, and every job is accounted for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[2] / "examples" / "demo" / "story.py"


def test_the_demo_accounts_for_every_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEMO_DIR", str(tmp_path))
    monkeypatch.setenv("DEMO_PIPELINE", "no")
    result = subprocess.run([sys.executable, DEMO], capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "every job is accounted for" in result.stdout
    assert "one worker was killed (kill -9)" in result.stdout
    assert "dead letters, e.g. invoice(" in result.stdout
    assert "run again: 'invoice" in result.stdout
    assert "left with exit code 0" in result.stdout
    assert "4 failed + 2 cancelled" in result.stdout
    assert "one of its two workers was killed (kill -9)" in result.stdout
    assert "601 of 601 jobs completed through jq-server" in result.stdout
    assert "left with exit codes 0 and 0" in result.stdout
