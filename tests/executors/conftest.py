"""The queue of `apps/work.py` in a store of its own, and a worker on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from jobq import Queue
from tests.executors.apps import work

ALL = (work.queue, work.other, work.confined, work.commands, work.packed, work.own)


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of the test's store."""
    if request.param == "memory":
        return f"memory://{uuid4().hex}"
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    """The queue, with all tasks of `apps/work.py`."""
    for one in ALL:
        one._context.connection.move(url)
    async with work.queue:
        yield work.queue
    for one in ALL:
        await one._context.connection.move_back()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where handlers leave files for the test."""
    return tmp_path
