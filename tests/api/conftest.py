"""Each test runs on a memory store and on a SQLite file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from jobq import Queue


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where the jobs of a test are kept."""
    return f"memory://{uuid4().hex}" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    """An open queue with nothing in it."""
    async with Queue("api", url) as queue:
        yield queue
