"""A server per session, emptied for every test; others are started by the tests that hurt them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest

from jobq.core.records import QueueName
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
    """A Valkey with nothing in it."""
    shared_server.tell("FLUSHALL")
    return shared_server


@pytest.fixture
async def store(server: servers.Server) -> AsyncIterator[ValkeyStore]:
    """A handle with the server's own clock."""
    handle = open_store(server.url)
    assert isinstance(handle, ValkeyStore)
    async with handle:
        yield handle


@pytest.fixture
def queue() -> QueueName:
    """A queue nobody else uses."""
    return QueueName("tests", f"q{next(_numbers)}")
