"""The stores a scenario is played on, opened once and shared by all scenarios."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest

from jobq.core.records.states import State
from jobq.errors import JobqError
from jobq.stores.base import Store
from jobq_conformance.kit import FakeClock
from jobq_conformance.places import PLACES, Fresh, Unavailable
from tests.pairs.claims import check_everything
from tests.pairs.features import FEATURES
from tests.pairs.matrix import Scenario, pairs
from tests.pairs.scene import Scene

DEFAULT = ("memory", "valkey")
SCENES = 8
"""Scenes that share a store. Opening one costs as much as a scene; each queue slows its upkeep."""


class Stage:
    """One store, and a handle on it."""

    def __init__(self, name: str, fresh: Fresh, runner: asyncio.Runner) -> None:
        self.name, self._fresh, self._runner = name, fresh, runner
        self._store: Store | None = None
        self._scenes = 0

    def play(self, scenario: Scenario) -> list[str]:
        """The story of a scenario on this store; of a refused one, the error."""
        return self._runner.run(self._play(scenario))

    async def _play(self, scenario: Scenario) -> list[str]:
        if self._scenes % SCENES == 0:
            await self._close()
            self.clock = FakeClock()
            self._store = self._fresh()(self.clock)
            await self._store.migrate()
        self._scenes += 1
        assert self._store is not None
        scene = Scene(self._store, self.clock, scenario.kind, scenario.features)
        try:
            story = (
                await self._refusal(scene, scenario.refused)
                if scenario.refused is not None
                else await scene.play()
            )
        except BaseException:
            self._scenes = 0  # what a failed scene leaves behind must not disturb the next one
            raise
        if scenario.refused is None:
            check_everything(scene)
        await scene.clear_away()
        return story

    async def _refusal(self, scene: Scene, expected: type[JobqError]) -> list[str]:
        """Refused, and the subject was not stored."""
        if scene.kind == "partitioned" and scene.unpartitioned:
            return [f"refused: {expected.__name__}"]  # partitions themselves are refused there
        with pytest.raises(expected):
            await scene.begin()
        assert await scene.look() is None
        assert not (await scene.store.count(scene.desk.queue)).get(State.ACTIVE)
        return [f"refused: {expected.__name__}"]

    async def _close(self) -> None:
        if self._store is not None:
            await self._store.aclose()
            self._store = None

    def close(self) -> None:
        self._runner.run(self._close())


def chosen(config: pytest.Config) -> list[str]:
    """The stores named by --store or JQ_TEST_STORES; memory and one Valkey if none is."""
    named = (
        config.getoption("--store")
        or [n for n in os.environ.get("JQ_TEST_STORES", "").split(",") if n]
        or DEFAULT
    )
    for name in named:
        if name not in PLACES:
            raise pytest.UsageError(
                f"the pair matrix knows no store {name!r}; it knows {', '.join(sorted(PLACES))}"
            )
    return list(named)


@pytest.fixture(scope="session")
def stages(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Stage]]:
    """The chosen stores, memory first: the story there is what the others are compared with."""
    names = sorted(chosen(request.config), key=lambda name: (name != "memory", name))
    with ExitStack() as stack:
        runner = stack.enter_context(asyncio.Runner())
        opened: list[Stage] = []
        for name in names:
            try:
                fresh = stack.enter_context(
                    contextmanager(PLACES[name])(tmp_path_factory.mktemp(name))
                )
            except Unavailable as missing:
                pytest.skip(f"there is no {name} on this machine: {missing}")
            opened.append(Stage(name, fresh, runner))
            stack.callback(opened[-1].close)
        yield opened


@pytest.fixture
def play(stages: list[Stage]) -> Callable[[Scenario], None]:
    """Play a scenario on every store and compare the stories."""

    def everywhere(scenario: Scenario) -> None:
        stories = {}
        for stage in stages:
            if (
                scenario.kind.startswith("partitioned")
                and stage.name in ("sqlite", "postgres", "grpc", "grpc-postgres")
                and len(stages) > 1
            ):
                continue  # one store without partitions is enough to compare with
            try:
                stories[stage.name] = stage.play(scenario)
            except AssertionError as broken:
                broken.add_note(f"{scenario.name} on {stage.name}")
                raise
        first, *others = stories
        for name in others:
            assert stories[name] == stories[first], (
                f"{scenario.name}: {name} tells another story than {first}"
            )

    return everywhere


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """How large the matrix is, and where it ran."""
    found = pairs()
    refused = sum(scenario.refused is not None for scenario in found)
    kinds = len({scenario.kind for scenario in found})
    terminalreporter.section("the pair matrix", sep="=")
    terminalreporter.line(
        f"{len(FEATURES)} features, {len(FEATURES) * (len(FEATURES) - 1) // 2} pairs, "
        f"{kinds} kinds of queues: {len(found):,} scenarios ({refused} of them refused), "
        f"on {', '.join(chosen(config))}"
    )
