"""A slot always comes back: an error at every call that the engine makes, one after the other."""

from __future__ import annotations

import os
import random
import sys

import pytest

from jobq_conformance import examples
from tests.engine.forced import KINDS, Injector, Kind, play, scene_of

SHARE = float(os.environ.get("JOBQ_FORCED", "0.02")) * examples.SHARE
"""The share of all raise points that are tried: 1 tries all of them, which takes minutes."""


# An error at a call leaves behind what was made for it: a coroutine that nobody awaits.
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS, ids=str)
async def test_whatever_the_engine_calls_may_raise_and_the_slot_comes_back(
    kind: Kind, capsys: pytest.CaptureFixture[str]
) -> None:
    async with scene_of(kind) as scene:
        await play(scene, kind, Injector())  # imports and caches
        with_none = Injector()
        await play(scene, kind, with_none)
    points = with_none.points
    tried = random.Random(str(kind)).sample(points, max(1, round(SHARE * len(points))))
    failed = {}
    missed = 0
    left = list(tried)
    while left:
        async with scene_of(kind) as scene:
            await play(scene, kind, Injector())
            while left:
                point = left.pop()
                injector = Injector(point)
                try:
                    await play(scene, kind, injector)
                except AssertionError as error:
                    failed[point] = str(error)
                    break
                missed += not injector.raised
    with capsys.disabled():
        sys.stdout.write(f"{kind}: {len(tried)} of {len(points)} points, {missed} not reached\n")
    assert not failed, "\n".join(f"{point}: {error}" for point, error in failed.items())
