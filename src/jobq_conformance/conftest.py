"""Which stores the suite runs on, and the fixtures: a fresh queue of one of them for every test."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from pathlib import Path
from typing import cast

import pytest

from jobq.stores.base import Store
from jobq_conformance.audit import audit
from jobq_conformance.kit import Desk, FakeClock, fresh_queue
from jobq_conformance.places import DEFAULT_PLACES, PLACES, Fresh, Opening, Unavailable
from jobq_conformance.roles import ROLES, Partial, lacking, needed, roles_of

AUDITED = frozenset({"events", "reads", "upkeep"})
"""The roles that a store needs for the audit after each test."""


def chosen(config: pytest.Config) -> list[str]:
    """The stores named by --store or JQ_TEST_STORES, or else the default ones."""
    named = config.getoption("--store") or [
        n for n in os.environ.get("JQ_TEST_STORES", "").split(",") if n
    ]
    for name in named:
        if name not in PLACES:
            raise pytest.UsageError(
                f"--store {name}: no such store is registered; use {', '.join(sorted(PLACES))}"
            )
    return named or sorted(DEFAULT_PLACES)


def pytest_configure(config: pytest.Config) -> None:
    """Refuse a misspelt store once, before tests are collected."""
    config.addinivalue_line(
        "markers", "needs(*roles): what a store must be able to do for this test (see roles.py)"
    )
    config.addinivalue_line(
        "markers", "topology: depends on which servers a store has and which of them has a queue"
    )
    chosen(config)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test that uses a store once per store."""
    if "store_name" in metafunc.fixturenames:
        metafunc.parametrize("store_name", chosen(metafunc.config), scope="session")


@pytest.fixture(scope="session")
def fresh_places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Fresh]]:
    """Starts what a store needs before its first test, and stops it at the end of the session."""
    started: dict[str, Fresh | str] = {}
    with ExitStack() as stack:

        def start(name: str) -> Fresh:
            if name not in started:
                try:
                    started[name] = stack.enter_context(
                        contextmanager(PLACES[name])(_tmp(tmp_path_factory, name))
                    )
                except Unavailable as missing:
                    started[name] = str(missing)
            found = started[name]
            if isinstance(found, str):
                pytest.skip(f"there is no {name} on this machine: {found}")
            return found

        yield start


def _tmp(factory: pytest.TempPathFactory, name: str) -> Path:
    return factory.mktemp(name)


@pytest.fixture
def opening(fresh_places: Callable[[str], Fresh], store_name: str) -> Opening:
    """Opens any number of handles on one fresh place."""
    return fresh_places(store_name)()


@pytest.fixture
def roles(opening: Opening, clock: FakeClock) -> frozenset[str]:
    """What the store can do."""
    return roles_of(opening(clock))


@pytest.fixture(autouse=True)
def _able(request: pytest.FixtureRequest) -> None:
    """Skip a test that needs roles the store lacks."""
    if "store_name" in request.fixturenames:
        missing = needed(request.node) - request.getfixturevalue("roles")
        if missing:
            pytest.skip(
                lacking(missing)
                if request.node.get_closest_marker("needs")
                else "the test needs every role"
            )


@pytest.fixture
def clock() -> FakeClock:
    """The store's clock. Only the test moves it."""
    return FakeClock()


@pytest.fixture
async def two_handles(
    opening: Opening, clock: FakeClock, roles: frozenset[str]
) -> AsyncIterator[tuple[Store, Store]]:
    """Two handles on one place, as two processes would have."""
    async with AsyncExitStack() as stack:
        first, second = [await stack.enter_async_context(opening(clock)) for _ in range(2)]
        yield _guarded(first, roles), _guarded(second, roles)


@pytest.fixture
async def store(opening: Opening, clock: FakeClock, roles: frozenset[str]) -> AsyncIterator[Store]:
    """One handle on a fresh place."""
    async with opening(clock) as handle:
        yield _guarded(handle, roles)


def _guarded(store: Store, roles: frozenset[str]) -> Store:
    return store if len(roles) == len(ROLES) else cast(Store, Partial(store, roles))


@pytest.fixture
async def q(store: Store, clock: FakeClock, roles: frozenset[str]) -> AsyncIterator[Desk]:
    """A fresh queue. After the test, its events and counts must add up."""
    desk = Desk(store, fresh_queue(), clock)
    yield desk
    if roles >= AUDITED:
        for queue in desk.audited:
            await audit(store, queue)


@pytest.fixture
async def q_twice(
    two_handles: tuple[Store, Store], clock: FakeClock, roles: frozenset[str]
) -> AsyncIterator[tuple[Desk, Desk]]:
    """The same queue seen through two handles."""
    first = Desk(two_handles[0], fresh_queue(), clock)
    second = first.through(two_handles[1])
    yield first, second
    if roles >= AUDITED:
        for queue in first.audited:
            await audit(second.store, queue)
