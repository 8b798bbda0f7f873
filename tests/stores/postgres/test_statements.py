"""Every statement of the SQL files is valid for the schema."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import psycopg
import pytest

import jobq.stores.relational
from jobq.stores.postgres.queries import (
    FAST,
    FAST_WITH_FLOORS,
    FLOORS,
    HOT_WITH_FLOORS,
    NUMBERING,
    SQL,
    UPKEEP_WITH_FLOORS,
    load,
)
from jobq.stores.postgres.waking import SQL as WAKING
from jobq.stores.postgres.waking import SQL_WITH_FLOORS as WAKING_WITH_FLOORS
from jobq.stores.relational.statements import Statements
from tests.stores.postgres import servers

FILES = {name: getattr(SQL, name) for name in Statements.__struct_fields__}
BLOCKS = [
    pytest.param(sql, id=f"{file}.{name}")
    for file, blocks in {
        **FILES,
        "numbering": NUMBERING,
        "log_segments": load("log_segments.sql"),
        "fast": FAST,
        "waking": WAKING,
        "floors": FLOORS,
        "fast above floors": FAST_WITH_FLOORS,
        "hot above floors": HOT_WITH_FLOORS,
        "upkeep above floors": UPKEEP_WITH_FLOORS,
        "waking above floors": WAKING_WITH_FLOORS,
    }.items()
    for name, sql in blocks.items()
]
_USED = re.compile(r'\.sql\.(\w+)\[\s*"(\w+)"\s*\]')


@pytest.fixture(scope="module")
def connection() -> Iterator[psycopg.Connection[Any]]:
    """A connection to a database that has the schema."""
    servers.postgres_or_skip()
    schema = files("jobq.stores.postgres").joinpath("migrations", "0001.sql").read_text("utf-8")
    with (
        servers.running(servers.FAST) as server,
        psycopg.connect(server.url, autocommit=True) as connection,
    ):
        connection.execute(schema.encode())
        yield connection


@pytest.mark.parametrize("sql", BLOCKS)
def test_the_server_can_prepare_the_statement(
    sql: str, connection: psycopg.Connection[Any]
) -> None:
    prepared = connection.pgconn.prepare(b"", sql.encode())
    assert prepared.error_field(psycopg.pq.DiagnosticField.MESSAGE_PRIMARY) is None


def test_the_shared_logic_finds_every_statement_that_it_names() -> None:
    missing = {
        f"{file}.{name}"
        for source in Path(str(jobq.stores.relational.__path__[0])).glob("*.py")
        for file, name in _USED.findall(source.read_text("utf-8"))
        if name not in FILES[file]
    }
    assert not missing


LOOKUPS = {
    **{name: SQL.hot[name] for name in ("insert_job", "insert_jobs", "ended_meanwhile", "taken")},
    "put_again": FAST["put_again"],
}
"""Statements that look for ended jobs by their ids."""


@pytest.mark.parametrize("name", LOOKUPS)
def test_an_ended_job_is_found_by_its_id_before_there_are_statistics(
    connection: psycopg.Connection[Any], name: str
) -> None:
    """Otherwise each put of a new database reads all jobs that have ended, for a minute."""
    plan = _plan(connection, LOOKUPS[name])
    looked = [line for line in plan.splitlines() if "Scan" in line and "jobs_ended" in line]
    assert looked, plan
    assert all("using jobs_ended_identity" in line for line in looked), plan


BY_NUMBER = {
    "exchange": FAST["exchange"],
    "exchange above floors": FAST_WITH_FLOORS["exchange"],
    "complete_all": SQL.hot["complete_all"],
    "extend": SQL.hot["extend"],
}
"""Statements that look for jobs by their numbers."""


@pytest.fixture(scope="module")
def emptied() -> Iterator[psycopg.Connection[Any]]:
    """A database whose table of waiting jobs is empty, but has dead rows that must be kept."""
    servers.postgres_or_skip()
    schema = files("jobq.stores.postgres").joinpath("migrations", "0001.sql").read_text("utf-8")
    with (
        servers.running({**servers.FAST, "autovacuum": "off"}) as server,
        psycopg.connect(server.url, autocommit=True) as connection,
        psycopg.connect(server.url) as other,
    ):
        connection.execute(schema.encode())
        other.execute("set transaction isolation level repeatable read")
        other.execute("select count(*) from pg_class")  # takes the snapshot
        connection.execute(
            "insert into jobs (qid, state, seq, created_ms, priority, flags, life, id, name, codec,"
            " payload) select 1, 2, n, 1, 0, 0, 0, n::text, 'task', 'json', 'x'"
            " from generate_series(1, 30000) n"
        )
        connection.execute("delete from jobs_hot")
        connection.execute("vacuum analyze jobs_hot")
        connection.execute("set enable_seqscan = off; set enable_bitmapscan = off")
        yield connection


@pytest.mark.parametrize("name", BY_NUMBER)
def test_jobs_are_found_by_number_when_vacuum_has_found_none(
    emptied: psycopg.Connection[Any], name: str
) -> None:
    """Otherwise each exchange reads all dead entries of the index, until the next vacuum."""
    lines = _plan(emptied, BY_NUMBER[name]).splitlines()
    looked = [n for n, line in enumerate(lines) if "jobs_hot_number" in line]
    assert looked
    assert all("Index Cond: (" in lines[n + 1] for n in looked), "\n".join(lines)


def _plan(connection: psycopg.Connection[Any], sql: str) -> str:
    """The plan that the server keeps for a statement that was prepared in a new database."""
    sql = sql.rstrip().rstrip(";")
    nulls = ", ".join(["null"] * max(int(n) for n in re.findall(r"\$(\d+)", sql)))
    connection.execute("set plan_cache_mode = force_generic_plan")
    connection.execute(f"prepare looked as {sql}".encode())
    try:
        rows = connection.execute(f"explain execute looked ({nulls})".encode()).fetchall()
    finally:
        connection.execute("deallocate looked")
    return "\n".join(row[0] for row in rows)
