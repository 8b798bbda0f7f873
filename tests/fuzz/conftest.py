"""Each test runs on memory, SQLite, Valkey and PostgreSQL, or on the stores `--store` names."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from uuid import uuid4

import pytest

from tests.places.postgres import without_fast_calls
from tests.stores.postgres import servers as postgres
from tests.stores.valkey import servers

KINDS = ["memory", "sqlite", "valkey", "postgres"]
ON_REQUEST = ["postgres-general"]
_schemas = count(1)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """`--store` chooses among the kinds these tests know."""
    if "kind" in metafunc.fixturenames:
        known = [*KINDS, *ON_REQUEST]
        named = [name for name in metafunc.config.getoption("--store") if name in known]
        metafunc.parametrize("kind", named or KINDS)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[servers.Server]:
    """A Valkey."""
    with servers.running(servers.valkey_or_skip(), tmp_path_factory.mktemp("valkey")) as server:
        yield server


@pytest.fixture(scope="session")
def database() -> Iterator[str]:
    """A PostgreSQL."""
    postgres.postgres_or_skip()
    with postgres.running(postgres.FAST) as server:
        yield server.url


@pytest.fixture
def url(request: pytest.FixtureRequest, kind: str, tmp_path: Path) -> Iterator[str]:
    """Where the jobs of a test are kept."""
    if kind == "valkey":
        server = request.getfixturevalue("server")
        server.tell("FLUSHALL")
        yield str(server.url)
    elif kind.startswith("postgres"):
        url = f"{request.getfixturevalue('database')}?schema=fuzz{next(_schemas)}"
        if kind == "postgres-general":
            with without_fast_calls():
                yield url
        else:
            yield url
    else:
        yield f"memory://{uuid4().hex}" if kind == "memory" else f"sqlite:///{tmp_path}/jobs.db"
