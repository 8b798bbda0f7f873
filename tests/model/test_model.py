"""The lease protocol keeps its promises in every state of the model, and real runs follow it."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from tests.model.checker import Explored, explore
from tests.model.leases import Bugs, Model, broken
from tests.model.replay import replay
from tests.model.states import Budget, World
from tests.simulation.faults import Jump
from tests.simulation.invariants import OPERATED, check
from tests.simulation.run import simulate
from tests.simulation.scenario import draw

TWO = Model(jobs=1, workers=2, budget=Budget(expiries=1, losses=1, repeats=0, kills=0, retries=1))
ONE = replace(TWO, workers=1)
SIZES = {
    "two workers": TWO,
    "two workers and a kill": replace(TWO, budget=Budget(0, 1, 0, 1, 0)),
    "two workers and a repeat": replace(TWO, budget=Budget(1, 0, 1, 0, 0)),
    "one worker, and everything goes wrong": replace(ONE, budget=Budget(1, 1, 1, 1, 0)),
    "one worker with two slots": replace(ONE, jobs=2, slots=2, budget=Budget(1, 1, 0, 0, 0)),
    "one worker with two slots and a kill": replace(
        ONE, jobs=2, slots=2, budget=Budget(0, 1, 0, 1, 0)
    ),
    "a call is executed after the next one": replace(
        ONE, late=True, jobs=2, slots=2, budget=Budget(1, 0, 1, 0, 0)
    ),
    "a call is executed after the worker's death": replace(
        ONE, late=True, budget=Budget(1, 0, 1, 1, 0)
    ),
}
SMALL = (
    "one worker with two slots",
    "a call is executed after the next one",
    "a call is executed after the worker's death",
)
"""The smallest sizes in which each mutant is found."""


def searched(model: Model) -> Explored[World]:
    return explore(
        model.beginning(), model.steps, lambda world: broken(world, model), good=model.over
    )


@pytest.mark.parametrize("model", SIZES.values(), ids=SIZES)
def test_no_state_of_the_model_breaks_an_invariant(model: Model) -> None:
    found = searched(model)
    assert found.broken is None, "\n".join((found.broken or "", *found.trace))
    assert found.states > 100


@pytest.mark.parametrize("bug", [field.name for field in fields(Bugs)])
def test_every_mutant_of_the_model_is_found(bug: str) -> None:
    mutated = (replace(SIZES[size], bugs=Bugs(**{bug: True})) for size in SMALL)
    assert any(searched(model).broken is not None for model in mutated)


@pytest.mark.parametrize("seed", range(8))
def test_real_runs_follow_the_model(seed: int) -> None:
    scenario = draw(seed)
    scenario = replace(
        scenario, faults=tuple(f for f in scenario.faults if not isinstance(f, Jump))
    )
    result = simulate(scenario, check)
    operated = frozenset(action.id for action in scenario.actions if action.what in OPERATED)
    assert replay(result.exchanged, free=operated) == []
