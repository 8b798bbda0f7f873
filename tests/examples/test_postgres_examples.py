"""The examples with PostgreSQL run by themselves, on a server of the test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.stores.postgres.servers import FAST, postgres_or_skip, running

EXAMPLES = sorted((Path(__file__).parents[2] / "examples/postgres").glob("*.py"))
SAID = {
    "psycopg_sync": "order 1 exists\n1 job waits\n",
    "psycopg_async": "receipt for order 1\n",
    "sqlalchemy_session": "1 job waits\n",
    "sqlalchemy_async": "receipt for order 1\n",
    "django_atomic": "order 1 exists\n1 job waits\n",
    "complete_in": "balance: 150\n",
    "until_idle": "receipt for order 1\n",
}


@pytest.fixture(scope="module")
def database() -> Iterator[str]:
    postgres_or_skip()
    with running(FAST) as server:
        yield server.url


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_with_postgresql_runs_by_itself(
    example: Path, database: str, tmp_path: Path
) -> None:
    if example.stem == "sqlalchemy_async" and find_spec("greenlet") is None:
        pytest.skip("pip install 'sqlalchemy[asyncio]'")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JQ_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        cwd=tmp_path,
        env={**environment, "DATABASE_URL": database},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.returncode) == (SAID[example.stem], 0), done.stderr
