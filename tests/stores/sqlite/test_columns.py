"""The columns that rows.py lists are those of the schema."""

from __future__ import annotations

import apsw
import pytest

from jobq.core.records.event_log import STATES
from jobq.stores.relational import rows
from jobq.stores.sqlite import schema, statements
from jobq.stores.sqlite.statements import COLUMNS


@pytest.fixture
def connection() -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    for statement in schema.every_statement():
        connection.execute(statement)
    return connection


@pytest.mark.parametrize(
    ("name", "table", "others"),
    [
        ("job", "jobs", set()),
        ("queue", "queues", set()),
        ("schedule", "schedules", {"qid", "id", "meta"}),
        ("edge", "edges", {"parent"}),
        ("lock", "locks", {"qid", "lock"}),
        ("figures", "minutes", {"qid", "minute"}),
    ],
)
def test_a_list_has_every_column_of_its_table(
    connection: apsw.Connection, name: str, table: str, others: set[str]
) -> None:
    columns = {row[1] for row in connection.execute(f"PRAGMA table_info({table})")}
    assert set(COLUMNS[name].split(", ")) == columns - others


def test_a_queue_that_is_loaded_and_saved_keeps_every_value(connection: apsw.Connection) -> None:
    hot = statements.load("hot.sql")
    connection.execute(hot["make_queue"], ("t", "q"))
    names = COLUMNS["queue"].split(", ")
    numbers = {name: n for n, name in enumerate(names) if name[:2] in ("n_", "m_")}
    numbers |= {
        "seq": 101,
        "pos": 102,
        "logged": 103,
        "held_ms": 104,
        "minute": 105,
        "reserved": 106,
    }
    for name, value in numbers.items():
        connection.execute(f"UPDATE queues SET {name} = {value}")
    (before,) = connection.execute(hot["queue"], ("t", "q")).fetchall()
    queue = statements.queue_row(before)
    connection.execute(hot["save_queue"], statements.values(queue))
    assert connection.execute(hot["queue"], ("t", "q")).fetchall() == [before]
    assert queue.counts == [numbers[f"n_{state}"] for state in STATES]
    assert queue.figures == [numbers[f"m_{figure}"] for figure in rows.FIGURES]


def test_a_job_that_is_loaded_and_saved_keeps_every_value(connection: apsw.Connection) -> None:
    hot = statements.load("hot.sql")
    new = rows.NewJob(
        qid=1,
        id="a",
        state=2,
        priority=3,
        seq=4,
        at_ms=5,
        key="k",
        flags=6,
        name="task",
        life=7,
        created_ms=8,
        due_ms=9,
        codec="json",
        options=b"o",
        payload=b"p",
    )
    connection.execute(hot["insert_job"], new)
    (before,) = connection.execute(hot["find_job"], (1, "a")).fetchall()
    job = rows.read(before, rows.Job)
    assert {name: getattr(job, name) for name in new._fields} == new._asdict()
    connection.execute(hot["save_job"], job.values())
    assert connection.execute(hot["find_job"], (1, "a")).fetchall() == [before]
