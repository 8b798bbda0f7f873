"""Each test runs on memory, a SQLite file and a Valkey, or on those of them `--store` names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.stores.valkey import servers

KINDS = ["memory", "sqlite", "valkey"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`--store` chooses among the kinds these tests know."""
    if "kind" in metafunc.fixturenames:
        named = [name for name in metafunc.config.getoption("--store") if name in KINDS]
        metafunc.parametrize("kind", named or KINDS)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    """A Valkey."""
    with servers.running(servers.valkey_or_skip(), tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture
def url(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> str:
    """Where the jobs of a test are kept."""
    if kind == "valkey":
        server = request.getfixturevalue("server")
        server.tell("FLUSHALL")
        return str(server.url)
    return f"memory://{uuid4().hex}" if kind == "memory" else f"sqlite:///{tmp_path}/jobs.db"
