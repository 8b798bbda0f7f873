"""Two stores for each test: every direction between memory, SQLite and Valkey, and those to and
from PostgreSQL and a jq-server that people need."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from itertools import permutations
from pathlib import Path

import pytest

from jobq.operations.store_copy import QueueCopy, Report, Side
from jobq.stores.base import Store
from jobq_conformance.audit import audit
from jobq_conformance.kit import Desk, FakeClock, fresh_queue
from jobq_conformance.places import PLACES, Fresh, Opening, Unavailable

KINDS = ("memory", "sqlite", "valkey")
DIRECTIONS = [
    *permutations(KINDS, 2),
    ("sqlite", "sqlite"),
    ("sqlite", "postgres"),
    ("postgres", "sqlite"),
    ("valkey", "postgres"),
    ("sqlite", "grpc"),
    ("grpc", "valkey"),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test that uses two desks once per direction between the chosen stores."""
    if "direction" in metafunc.fixturenames:
        chosen = metafunc.config.getoption("--store") or (*KINDS, "postgres", "grpc")
        found = [pair for pair in DIRECTIONS if set(pair) <= set(chosen)]
        metafunc.parametrize("direction", found, ids=[f"{a}-{b}" for a, b in found])


@pytest.fixture(scope="session")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Fresh]]:
    """Starts a kind of store before its first test, and stops it at the end of the session."""
    started: dict[str, Fresh] = {}
    with ExitStack() as stack:

        def start(name: str) -> Fresh:
            if name not in started:
                tmp: Path = tmp_path_factory.mktemp(name)
                try:
                    started[name] = stack.enter_context(contextmanager(PLACES[name])(tmp))
                except Unavailable as missing:
                    pytest.skip(f"there is no {name} on this machine: {missing}")
            return started[name]

        yield start


class Copying:
    """A queue in two stores with one clock, and the copy from one to the other."""

    def __init__(self, here: Store, there: Store, clock: FakeClock) -> None:
        self.clock = clock
        self.here = Desk(here, fresh_queue(), clock)
        self.there = Desk(there, self.here.queue, clock)

    async def copy(self, *, wait_s: float = 0.0) -> Report:
        """Run the copy once."""
        return await QueueCopy(
            Side(self.here.store, actor="ops@host"),
            Side(self.there.store, actor="ops@host"),
            self.here.queue,
            wait_s=wait_s,
            clock=self.clock,
        ).run()


@pytest.fixture
def openings(places: Callable[[str], Fresh], direction: tuple[str, str]) -> list[Opening]:
    """Opens handles on two fresh places. Not async: starting a place may need an event loop."""
    return [places(name)() for name in direction]


@pytest.fixture
async def both(openings: list[Opening]) -> AsyncIterator[Copying]:
    """Two stores. After the test, the events and counts of each must add up."""
    clock = FakeClock()
    async with AsyncExitStack() as stack:
        here, there = [await stack.enter_async_context(opening(clock)) for opening in openings]
        pair = Copying(here, there, clock)
        yield pair
        await audit(here, pair.here.queue)
        await audit(there, pair.there.queue)
