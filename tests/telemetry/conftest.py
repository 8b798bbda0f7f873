"""A queue in a store of its own. Telemetry sees jobs, not stores, so one kind of store will do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest

from jobq import Queue


@pytest.fixture
def url() -> str:
    """Where the jobs of a test are kept."""
    return f"memory://{uuid4().hex}"


@pytest.fixture
async def queue(url: str) -> AsyncIterator[Queue]:
    """An open queue with nothing in it."""
    async with Queue("mail", url) as queue:
        yield queue
