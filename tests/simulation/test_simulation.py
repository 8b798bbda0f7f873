"""CI's share of the simulation: 200 seeds, twice each. `make simulate` runs more."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.simulation.mutants import MUTANTS, Mutant, applied
from tests.simulation.scenario import draw
from tests.simulation.seeds import run_seed, timeline

SEEDS = 200
CHUNK = 20


@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_every_seed_keeps_the_promises_and_runs_the_same_twice(first: int) -> None:
    for seed in range(first, first + CHUNK):
        problems = run_seed(seed).problems
        if problems:
            pytest.fail(f"{problems[0]}\n\n{timeline(draw(seed))}")


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_still_fits_the_code(mutant: Mutant) -> None:
    with applied(mutant):
        pass


def test_the_command_runs_seeds_in_processes_of_their_own() -> None:
    command = [sys.executable, "-m", "tests.simulation", "--seeds", "2", "--processes", "2"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "2/2" in ran.stdout
    assert "0 fail" in ran.stdout
