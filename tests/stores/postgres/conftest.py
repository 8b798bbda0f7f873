"""What most of these tests need: a server, and in it a database of a caller with a store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from itertools import count

import pytest

from jobq import Queue
from tests.stores.postgres import servers
from tests.stores.postgres.servers import FAST, Server, ask

_schemas = count(1)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server for the tests of one file, which do not damage it."""
    servers.postgres_or_skip()
    with servers.running(FAST) as running:
        yield running


@pytest.fixture
def url(server: Server) -> str:
    """The caller's database, with empty tables `orders` and `effects`."""
    ask(server.url, "drop table if exists orders, effects")
    ask(server.url, "create table orders (id int primary key)")
    ask(server.url, "create table effects (job text)")
    return server.url


@pytest.fixture
def store(url: str) -> str:
    """The URL of an empty store in the caller's database."""
    return f"{url}?schema=jobq{next(_schemas)}"


@pytest.fixture
async def queue(store: str) -> AsyncIterator[Queue]:
    """A queue in that store."""
    async with Queue("work", store) as queue:
        yield queue
