"""A small run with real processes on SQLite, and its facts falsified in every way."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.ledger import facts
from tests.faults.ledger.cheats import CHEATS
from tests.faults.ledger.judge import Judge
from tests.faults.ledger.reader import passes
from tests.faults.ledger.report import table
from tests.faults.ledger.run import Settings, execute

SMALL = Settings(
    store="sqlite", jobs=300, kills=3, others=1, seed=4, work_ms=100, workers=2,
    producers=1, lease_s=1.0, only=("kill worker", "kill producer", "power cut"),
)  # fmt: skip


@pytest.mark.timeout(120)
def test_a_small_run_is_good_and_every_cheat_in_its_facts_is_found(tmp_path: Path) -> None:
    result = execute(SMALL, tmp_path, lambda _: None)
    assert result.good, table(result)
    assert result.verdict.acknowledged == SMALL.jobs
    assert len(result.faults) == 4
    assert result.verdict.repeats >= 6, "six jobs fail at first"
    for cheat, rules in CHEATS.items():
        with (tmp_path / "sorted.txt").open() as lines:
            stories = list(facts.stories(lines, passes(tmp_path)))
        cheat(stories, random.Random(SMALL.seed))
        found = Judge(result.faults).judge(stories)
        assert rules <= found.findings.keys(), cheat.__name__
