"""A plain job pays nothing for what it does not use: bench.journeys sees the files it enters."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.journeys import JOURNEYS, file_of

SPECIAL = ("bounds", "failed_runs", "flows", "keys", "last_chances", "locks", "steps")
"""Modules of jobs that have more than a name and arguments."""


@pytest.mark.parametrize("journey", JOURNEYS)
async def test_a_plain_job_enters_no_module_of_special_jobs(journey: str, tmp_path: Path) -> None:
    calls = await JOURNEYS[journey](f"sqlite:///{tmp_path}/jobs.db")
    entered = {file_of(code) for code in calls}
    assert "stores/relational/put.py" in entered
    special = {f"stores/relational/{name}.py" for name in SPECIAL}
    assert (
        entered & {*special, "core/rules/limits.py", "core/rules/flows.py", "core/rules/locks.py"}
        == set()
    )
