"""`jq-ctl store migrate` and `jq-ctl status --verbose` on a PostgreSQL store."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from tests.cli.kit import Ctl
from tests.stores.postgres import servers
from tests.stores.postgres.servers import FAST, Server, ask


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server for all tests of this file."""
    servers.postgres_or_skip()
    with servers.running(FAST) as running:
        yield running


@pytest.fixture
def url(server: Server) -> str:
    """A database without tables, of which other programs may not change the schema."""
    ask(server.url, "drop schema if exists jobq cascade")
    return f"{server.url}?migrate=no"


def test_programs_are_told_to_migrate_and_the_command_does_it(ctl: Ctl) -> None:
    refused = ctl("status", code=2)
    assert "run `jq-ctl store migrate --url …`" in refused.output
    assert "has been migrated" in ctl("store", "migrate").output
    assert "is up to date" in ctl("store", "migrate").output
    assert ctl.json("status")["queues"] == []


def test_a_dry_run_prints_sql_that_psql_can_run_and_changes_nothing(
    ctl: Ctl, server: Server
) -> None:
    sql = ctl("store", "migrate", "--dry-run").stdout
    assert sql.startswith("-- jobq ")
    assert sql.endswith("COMMIT;\n")
    assert ask(server.url, "select to_regnamespace('jobq')") == [(None,)]
    ask(server.url, sql)
    assert ctl("store", "migrate", "--dry-run").stdout == ""
    assert ctl.json("store", "migrate") == {
        "url": ctl.url, "changed": False, "sql": "",
    }  # fmt: skip


def test_verbose_shows_the_tables_and_who_keeps_a_transaction_open(
    ctl: Ctl, server: Server
) -> None:
    ctl("store", "migrate")
    ctl("job", "submit", "add", "-q", "shop", "--payload", "[1, 2]")
    ask(server.url, "analyze")
    with psycopg.connect(server.url, application_name="report") as other:
        other.execute("select 1")
        found = ctl.json("status", "--verbose")["database"]
        assert "(report, idle in transaction)" in found["oldest"]["held_by"]
        shown = ctl("status", "--verbose").stdout
    assert found["server"].startswith("PostgreSQL ")
    assert 0 < found["connections"] < found["max_connections"]
    tables = {each["name"]: each for each in found["tables"]}
    assert tables["jobs_hot"]["rows"] == 1
    assert tables["jobs_hot"]["index_bytes"] > 0
    assert "entries" in tables  # its partitions are added up
    assert not [name for name in tables if name.startswith("entries_")]
    assert "Oldest transaction" in shown
    assert "jobs_hot" in shown


def test_bloated_indexes_and_dead_rows_show(ctl: Ctl, server: Server) -> None:
    ctl("store", "migrate")
    with psycopg.connect(server.url, autocommit=True) as other:
        other.execute("alter table jobq.errors set (autovacuum_enabled = off)")
        other.execute(
            "insert into jobq.errors (pk, attempt, failure)"
            " select n, 1, '' from generate_series(1, 100000) n"
        )
        other.execute("delete from jobq.errors where pk % 10 <> 0")
        other.execute("vacuum analyze jobq.errors")
        other.execute("delete from jobq.errors where pk % 100 = 0")
    # The connection has reported its statistics when it is closed.
    found = ctl.json("status", "--verbose")["database"]
    (errors,) = (each for each in found["tables"] if each["name"] == "errors")
    assert errors["dead"] >= 1000
    # Nine of ten entries are gone, and the pages of the index are still there.
    assert 0.7 < errors["bloat_bytes"] / errors["index_bytes"] < 1.0


def test_other_stores_have_nothing_to_print(tmp_path: object) -> None:
    embedded = Ctl(f"sqlite:///{tmp_path}/jobs.db")
    embedded("job", "submit", "add", "-q", "shop", "--payload", "[1, 2]")
    assert "only PostgreSQL stores have" in embedded("store", "migrate", "--dry-run", code=2).output
    assert "is up to date" in embedded("store", "migrate").output
    assert "database" not in embedded.json("status", "--verbose")
