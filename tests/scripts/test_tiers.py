"""`--tier` splits the tests in two, leaves none out, and a long run shows how far it is."""

from __future__ import annotations

import io
import subprocess
import sys
from itertools import chain
from pathlib import Path

import pytest

from tests.progress import Progress
from tests.tiers import LEFT_OUT

ROOT = Path(__file__).parents[2]
FILES = ("src/jobq_conformance/test_wakeups.py", "src/jobq_conformance/test_lives.py")


def collected(*arguments: str) -> tuple[set[str], str]:
    """The tests that a run would contain, and what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", *FILES, *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    return {line for line in done.stdout.splitlines() if "::" in line}, done.stdout


def test_a_test_is_in_the_first_tier_or_in_the_rest() -> None:
    everything, _ = collected()
    first, said = collected("--tier", "test")
    rest, _ = collected("--tier", "rest")
    assert first | rest == everything
    assert not first & rest
    both = {test for test in first if "redis" in test}
    assert both == {test for test in everything if "redis" in test and "wakeups" in test}
    left = sum("redis" in test for test in rest)
    assert f"{left} tests: make test-rest runs them: the contract suite on redis" in said


@pytest.mark.parametrize("beginning", [*chain(*LEFT_OUT.values())])
def test_what_the_first_tier_leaves_out_exists(beginning: str) -> None:
    path, _, test = beginning.partition("::")
    assert (ROOT / path).exists()
    if test:
        assert f"def {test.partition('[')[0]}" in (ROOT / path).read_text()


def test_a_run_says_what_is_done_left_slow_and_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("tests.progress.time.monotonic", lambda: now[0])
    monkeypatch.setattr(sys, "stdout", out := io.StringIO())
    shown = Progress()
    shown.pytest_xdist_node_collection_finished(["a", "b", "c", "d"])
    shown.pytest_runtest_logstart("a")
    shown.pytest_runtest_logstart("slow")
    shown.pytest_runtest_logfinish("a")
    assert out.getvalue() == ""
    now[0] += 60
    shown.pytest_runtest_logstart("b")
    assert out.getvalue() == "1 of 4 tests · 1:00 gone · about 3:00 left · 60 s in slow\n"
    failed = pytest.TestReport("b", ("b", 1, "b"), {}, "failed", "broken", "call")
    assert shown.pytest_report_teststatus(failed) == ("failed", "", "")
    shown.pytest_runtest_logfinish("b")
    shown.pytest_runtest_logfinish("slow")
    shown.pytest_sessionfinish()
    assert out.getvalue().splitlines()[1:] == [
        "FAILED b (call)",
        "3 of 4 tests · 1:00 gone · about 0:20 left · 1 failed",
    ]
