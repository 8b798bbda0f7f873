"""No statement reads the whole backlog, as SQLite's query plans show."""

from __future__ import annotations

import re

import apsw
import pytest

from jobq.stores.sqlite import schema
from jobq.stores.sqlite.statements import load

# Tables with a row per queue, worker, listener or flow, but not per job; and lists in parameters.
SMALL = {
    "queues",
    "workers",
    "calls",
    "minutes",
    "listeners",
    "sleepers",
    "json_each",
    "k",
    "flows",
    "schedules",
    "holds",
}
FILES = (
    "hot.sql",
    "keyed.sql",
    "ties.sql",
    "upkeep.sql",
    "queues.sql",
    "reads.sql",
    "signals.sql",
    "schedules.sql",
    "holds.sql",
    "presence.sql",
)


def statements() -> list[tuple[str, str]]:
    return [(f"{file}:{name}", sql) for file in FILES for name, sql in load(file).items()]


@pytest.fixture(scope="module")
def connection() -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    for statement in schema.every_statement():
        connection.execute(statement)
    return connection


def plan(connection: apsw.Connection, sql: str) -> list[str]:
    numbers = [int(n) for n in re.findall(r"\?(\d+)", sql)]
    count = max(numbers, default=sql.count("?"))
    return [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", ["[1]"] * count)]


@pytest.mark.parametrize(("name", "sql"), statements(), ids=[name for name, _ in statements()])
def test_a_statement_finds_its_rows_by_an_index(
    connection: apsw.Connection, name: str, sql: str
) -> None:
    for step in plan(connection, sql):
        scanned = re.match(r"SCAN (\w+)", step)
        assert scanned is None or scanned[1] in SMALL | {"CONSTANT"}, f"{name}: {step}"


def test_a_claim_reads_the_head_of_the_queue_in_order(connection: apsw.Connection) -> None:
    hot = load("hot.sql")
    steps = plan(connection, hot["claim_plain"])
    assert any("jobs_line" in step for step in steps), steps
    assert not any("TEMP B-TREE" in step for step in steps), steps


def test_members_of_a_flow_are_found_by_their_ids(connection: apsw.Connection) -> None:
    steps = plan(connection, load("ties.sql")["staged_among"])
    assert any("queue=? AND id=?" in step for step in steps), steps


@pytest.mark.parametrize(
    "name", ["due", "stalled", "expired", "overdue", "next_due", "next_expiry"]
)
def test_jobs_whose_time_has_come_are_found_by_the_clock_index(
    connection: apsw.Connection, name: str
) -> None:
    steps = plan(connection, load("hot.sql")[name])
    assert all("jobs_clock" in step for step in steps), steps
