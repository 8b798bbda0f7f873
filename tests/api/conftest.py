"""Each test runs on a memory store and on a SQLite file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest

from jobq import Queue, testing


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the jobs of a test are kept."""
    return f"memory://{uuid4().hex}" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"


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
