"""Runs parts of the contract suite on a place that a run without `--store` leaves out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUITE = ROOT / "src/jobq_conformance"


def contract_suite_passes(place: str, *names: str) -> None:
    """Run these files of the suite (`put` is test_put.py) on a place, and check that they pass."""
    files = [SUITE / f"test_{name}.py" for name in names]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *files, "--store", place],
        cwd=ROOT,
        env={**os.environ, "JQ_TEST_STORES": ""},
        capture_output=True,
        text=True,
        timeout=220,
    )
    assert done.returncode == 0, done.stdout[-3000:]
