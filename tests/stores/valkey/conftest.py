"""One server per session, emptied before every test. Tests that damage a server start their own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest

from jobq.core.records.jobs import QueueName
from jobq.stores import open_store
from jobq.stores.valkey.store import ValkeyStore
from tests.stores.valkey import servers

_numbers = count()


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    with servers.running(servers.valkey_or_skip(), tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture
def server(shared_server: servers.Server) -> servers.Server:
    """An empty Valkey server."""
    shared_server.tell("FLUSHALL")
    return shared_server


@pytest.fixture
async def store(server: servers.Server) -> AsyncIterator[ValkeyStore]:
    """A handle that uses the server's clock."""
    handle = open_store(server.url)
    assert isinstance(handle, ValkeyStore)
    async with handle:
        yield handle


@pytest.fixture
def queue() -> QueueName:
    """A queue that no other test uses."""
    return QueueName("tests", f"q{next(_numbers)}")
