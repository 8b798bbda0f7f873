"""A fresh store per test, on each embedded place."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest

from jobq.stores import open_store
from jobq.stores.base import Store

from .frail import Scene
from .kit import Bench, Proxy


@pytest.fixture(params=["memory", "sqlite"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of the test's store."""
    return (
        f"memory://{uuid4().hex}" if request.param == "memory" else f"sqlite:///{tmp_path}/jobs.db"
    )


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    """A handle on the store."""
    async with open_store(url) as handle:
        yield handle


@pytest.fixture
def line(store: Store) -> Proxy:
    """The same store, through a line that can be disturbed."""
    return Proxy(store)


@pytest.fixture
def bench(store: Store) -> Bench:
    """A queue to register handlers on and put jobs into."""
    return Bench(store)


@pytest.fixture
def scene(bench: Bench) -> Scene:
    """Two tasks that tell when they run."""
    return Scene(bench)
