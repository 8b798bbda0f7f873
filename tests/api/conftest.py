"""Each test runs on a memory store and a SQLite file, or on the stores that `--store` names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest

from jobq import Queue, testing
from jobq_conformance.places import at
from scripts import postgres
from tests.places.server import ServerThread, serving
from tests.stores.postgres.servers import postgres_or_skip
from tests.stores.valkey import servers

KINDS = ["memory", "sqlite", "valkey", "postgres", "grpc"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`--store` chooses among the kinds these tests know."""
    if "kind" in metafunc.fixturenames:
        named = [name for name in metafunc.config.getoption("--store") if name in KINDS]
        metafunc.parametrize("kind", named or KINDS[:2])


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    """A Valkey, for those who asked for one."""
    with servers.running(servers.valkey_or_skip(), tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture(scope="session")
def database() -> Iterator[postgres.Server]:
    """A PostgreSQL, for those who asked for one."""
    postgres_or_skip()
    with postgres.running(postgres.FAST) as server:
        yield server


@pytest.fixture(scope="session")
def served() -> Iterator[ServerThread]:
    """A jq-server, for those who asked for one."""
    with serving() as server:
        yield server


@pytest.fixture
def url(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> str:
    """Where the jobs of a test are kept."""
    if kind == "valkey":
        server = request.getfixturevalue("server")
        server.tell("FLUSHALL")
        return str(server.url)
    if kind == "postgres":
        database = request.getfixturevalue("database")
        return f"{database.url}?schema=jobq{uuid4().hex[:12]}"
    if kind == "grpc":
        served: ServerThread = request.getfixturevalue("served")
        return served.serve(at(f"sqlite:///{tmp_path}/jobs.db"))
    return f"memory://{uuid4().hex}" if kind == "memory" else f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    """An open queue with nothing in it."""
    async with Queue("api", url) as queue:
        yield queue


@pytest.fixture
async def jobs(url: str) -> AsyncIterator[testing.Sandbox]:
    """A queue under a clock that the test moves: `jobs.clock.advance(60)`, `await jobs.drain()`."""
    clock = testing.FakeClock(datetime(2026, 3, 2, 12, tzinfo=UTC))
    async with testing.Sandbox((Queue("api", url),), clock, url) as jobs:
        yield jobs


@pytest.fixture
async def clocked(jobs: testing.Sandbox) -> AsyncIterator[Queue]:
    """The queue of `jobs`, open."""
    async with jobs.queues[0] as queue:
        yield queue
