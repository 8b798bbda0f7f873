"""The stores that the rules are played on: the embedded one, and a Valkey server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count

import pytest

from tests.rules.kit import Table
from tests.stores.valkey import servers

_numbers = count()


@pytest.fixture(scope="session")
def valkey_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with servers.running(servers.valkey_or_skip(), tmp_path_factory.mktemp("rules")) as server:
        yield server.url


@pytest.fixture(params=["memory", "valkey"])
def table(request: pytest.FixtureRequest) -> Iterator[Table]:
    """Where scripts are played. Every example gets a queue and a clock of its own."""
    url = request.getfixturevalue("valkey_url") if request.param == "valkey" else None
    with asyncio.Runner() as runner:
        yield Table(runner, lambda: url or f"memory://rules-{next(_numbers)}")
