"""A statement reads what it returns and a little more, however many rows the tables have."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import psycopg
import pytest

from jobq.stores.postgres.queries import (
    FAST,
    FAST_WITH_FLOORS,
    FLOORS,
    HOT_WITH_FLOORS,
    NUMBERING,
    SQL,
    UPKEEP_WITH_FLOORS,
)
from jobq.stores.postgres.waking import SQL as WAKING
from jobq.stores.postgres.waking import SQL_WITH_FLOORS as WAKING_WITH_FLOORS
from tests.stores.postgres import servers

ROWS = 30_000
"""Rows of each kind. To read them all takes more than a thousand blocks."""
BLOCKS = 250
"""Blocks of 8 kB that a statement may read and write. A claim of ten jobs takes about 200: it
changes ten rows and thirty index entries."""

_FILL = f"""
INSERT INTO queues (tenant, name, mode, plain)
VALUES ('t', 'plain', 'plain', true), ('t', 'keyed', 'keyed', false);
INSERT INTO sleepers (qid, worker, mailbox, slots, since_ms) VALUES (1, 'w', 'm', 1, 1);
INSERT INTO counts (qid) VALUES (1), (2);
INSERT INTO jobs (qid, state, seq, at_ms, created_ms, due_ms, priority, flags, life, id, name, key,
    codec, payload, finished_ms)
SELECT 1, 2, n, NULL::bigint, 1, 1, 0, 0, 0, 'w' || n, 'task', NULL::text, 'json', 'x'::bytea,
    NULL::bigint
FROM generate_series(1, {ROWS}) n
UNION ALL
SELECT 2, 2, n, NULL, 1, 1, 0, 0, 0, 'k' || n, 'task', 'key' || n % 10000, 'json', 'x', NULL
FROM generate_series(1, {ROWS}) n
UNION ALL
SELECT 1, 3, n, 1000 + n, 1, 1, 0, 0, 0, 'a' || n, 'task', NULL, 'json', 'x', NULL
FROM generate_series(1, {ROWS}) n
UNION ALL
SELECT 1, 0, n, 1000 + n, 1, 1, 0, 0, 0, 'd' || n, 'task', NULL, 'json', 'x', NULL
FROM generate_series(1, {ROWS}) n
UNION ALL
SELECT 1, 4, n, 1000 + n, 1, 1, 0, 0, 0, 'c' || n, 'task', NULL, 'json', 'x', 1
FROM generate_series(1, {ROWS}) n;
INSERT INTO keys (qid, key, waiting, active, turn, ready)
SELECT 2, 'key' || n, 3, 0, n, 1 FROM generate_series(0, 9999) n;
INSERT INTO edges (parent, ordinal, child_qid, data, child)
SELECT 1, n, 1, 0, 'w' || n FROM generate_series(1, {ROWS}) n;
INSERT INTO flows (tenant, flow, begun_ms, done) SELECT 't', 'f' || n, n, 1
FROM generate_series(1, {ROWS}) n;
INSERT INTO staged (tenant, flow, n, queue, id, spec)
SELECT 't', 'f', n, 'plain', 's' || n, 'x' FROM generate_series(1, {ROWS}) n;
INSERT INTO entries (qid, at_ms, n, items, moved, figures)
SELECT 1, 1, 1, 'x', '{{0,0,1,0,0,0,0}}', '{{1,0,0,0,0,0,0,0,0}}' FROM generate_series(1, {ROWS});
"""

_RANGES = (
    "'{1,1,1,1}', '{2097151,0,0,0}', '{1,0,0,0}', '{15000,-9000,100,15000}', "
    "'{4000000000,0,110,4000000000}'"
)
"""Ranges of the index of waiting jobs: other priorities, lifo jobs, a block, and all behind."""

STATEMENTS: dict[str, tuple[str, str]] = {
    "claim_plain": (SQL.hot["claim_plain"], "'m', 'w', 5, 9, 1, 10"),
    "head_of_queue": (SQL.hot["head_of_queue"], "1, 5, 10"),
    "next_keys": (SQL.keyed["next_keys"], "2, 5, 10"),
    "anything_due": (SQL.hot["anything_due"], "1, 5"),
    "due": (SQL.hot["due"], "1, 1010, 10"),
    "stalled": (SQL.hot["stalled"], "1, 1010, 10"),
    "next_due": (SQL.hot["next_due"], "1"),
    "next_expiry": (SQL.hot["next_expiry"], "1"),
    "find_job": (SQL.hot["find_job"], "1, 'w7'"),
    "lock_found": (SQL.hot["lock_found"], "1, 'c7'"),
    "load_job": (SQL.hot["load_job"], "7"),
    "taken": (SQL.hot["taken"], "1, '{w1,w2}', 1, 2"),
    "awaited": (SQL.ties["awaited"], "1, '{w1,w2,w3,w4,w5,x1,x2,x3,x4,x5}'"),
    "waiting_parents": (SQL.ties["waiting_parents"], "1, 'w7', 10"),
    "redirect_edges": (SQL.ties["redirect_edges"], "'w8', 'w7', 1"),
    "staged_ends": (SQL.ties["staged_ends"], "'t', 'f'"),
    "staged_among": (SQL.ties["staged_among"], "'t', 'f', 'plain', '{s1,s2,s3,x1,x2}'"),
    "next_weights": (SQL.ties["next_weights"], "'t', 'f', 100, 10"),
    "next_staged": (SQL.ties["next_staged"], "'t', 'f', 100, 110"),
    "next_places": (SQL.ties["next_places"], "'t', 'f', 10"),
    "unstage": (SQL.ties["unstage"], "'t', 'f', 100, 110"),
    "old_flows": (SQL.ties["old_flows"], "10, 10"),
    "left_flows": (SQL.ties["left_flows"], "100000, 10"),
    "past_retention": (SQL.upkeep["past_retention"], "1, 4, 0, 1010, 10"),
    "newest_beyond": (SQL.upkeep["newest_beyond"], "1, 4, 10"),
    "beyond_count": (SQL.upkeep["beyond_count"], "1, 4, 1010, 5, 10"),
    "to_tick": (SQL.upkeep["to_tick"], "5, 5, 0, 500"),
    "keys_after": (SQL.keyed["keys_after"], "2, 'key5', 5, 500"),
    "page_waiting": (SQL.reads["page_waiting"], "1, 10, 0, 15000"),
    "page_waiting_keyed": (SQL.reads["page_waiting_keyed"], "2, 10, 'key5', 0, 15000"),
    "page_timed": (SQL.reads["page_timed"], "1, 10, 2000, 10, 4, 0"),
    "page_waiting_oldest": (SQL.reads["page_waiting_oldest"], "1, 10, 0, 15000"),
    "page_waiting_keyed_oldest": (
        SQL.reads["page_waiting_keyed_oldest"],
        "2, 10, 'key5', 0, 15000",
    ),
    "page_timed_oldest": (SQL.reads["page_timed_oldest"], "1, 10, 2000, 10, 4, 0"),
    "head": (SQL.reads["head"], "1"),
    "keyed_head": (SQL.reads["keyed_head"], "2"),
    "entries": (SQL.reads["entries"], "1, 10000, 10"),
    "oldest_entries": (SQL.upkeep["oldest_entries"], "1, 10"),
    "number": (NUMBERING["number"], "100000"),
    "counts": (NUMBERING["counts"], "1"),
    "exchange": (
        FAST["exchange"],
        "'{1}', '{}', '{}', '{}', '{}', 5, 10, 'm', 'w', 9, 'c', 'x', '{}', '{}', '{}', '{}', "
        "false",
    ),
    "put_again": (FAST["put_again"], "1, '{w1,w2}'"),
    "next_times": (FAST["next_times"], "'{1}', 5"),
    "wake": (
        WAKING["wake"],
        "'{1}', '{1}', '{NULL}', '{t}', '{plain}', '{t}', '{t}', '{}', '{}', '{}', '{}', '{}', "
        "'250', '1000', 5",
    ),
    "minutes": (NUMBERING["minutes"], "1, 1"),
    "heads": (FLOORS["heads"], "16, 4000"),
    "front": (FLOORS["front"], "1, 0, 15000"),
    "claim_plain above floors": (FLOORS["claim_plain"], f"'m', 'w', 5, 9, 1, 10, {_RANGES}"),
    "anything_due above floors": (HOT_WITH_FLOORS["anything_due"], "1, 5, 2"),
    "due above floors": (HOT_WITH_FLOORS["due"], "1, 1010, 10, 1005"),
    "to_tick above floors": (UPKEEP_WITH_FLOORS["to_tick"], "5, 5, 0, 500, '{1}', '{2}', '{2}'"),
    "exchange above floors": (
        FAST_WITH_FLOORS["exchange"],
        "'{1}', '{}', '{}', '{}', '{}', 5, 10, 'm', 'w', 9, 'c', 'x', '{}', '{}', '{}', '{}', "
        f"false, '{{2}}', {_RANGES}",
    ),
    "wake above floors": (
        WAKING_WITH_FLOORS["wake"],
        "'{1}', '{1}', '{NULL}', '{t}', '{plain}', '{t}', '{t}', '{}', '{}', '{}', '{}', '{}', "
        f"'250', '1000', 5, {_RANGES}",
    ),
}


@pytest.fixture(scope="module", params=["statistics", "no statistics"])
def connection(request: pytest.FixtureRequest) -> Iterator[psycopg.Connection[Any]]:
    """A connection to a database with many rows, with what the planner knows of them or without."""
    servers.postgres_or_skip()
    schema = files("jobq.stores.postgres").joinpath("migrations", "0001.sql").read_text("utf-8")
    with (
        servers.running({**servers.FAST, "autovacuum": "off"}) as server,
        psycopg.connect(server.url, autocommit=True) as connection,
    ):
        connection.execute(schema.encode())
        connection.execute(_FILL.encode())
        # As the store's connections are set (session.py).
        connection.execute("SET enable_seqscan = off; SET enable_bitmapscan = off; SET jit = off")
        connection.execute(b"PREPARE pass AS " + NUMBERING["number"].encode())
        connection.execute("EXECUTE pass(100000)")
        if request.param == "statistics":
            connection.execute("ANALYZE")
        yield connection


@pytest.mark.parametrize("name", STATEMENTS)
@pytest.mark.parametrize("plan", ["force_custom_plan", "force_generic_plan"])
def test_the_statement_reads_few_blocks(
    name: str, plan: str, connection: psycopg.Connection[Any]
) -> None:
    sql, values = STATEMENTS[name]
    connection.execute(f"SET plan_cache_mode = {plan}".encode())
    connection.execute(f"PREPARE measured AS {sql}".encode())
    try:
        with connection.transaction(force_rollback=True):
            ((found,),) = connection.execute(
                f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE measured({values})".encode()
            ).fetchall()
    finally:
        connection.execute("DEALLOCATE measured")
    plan_found = found[0]["Plan"]
    blocks = plan_found["Shared Hit Blocks"] + plan_found["Shared Read Blocks"]
    assert blocks <= BLOCKS, json.dumps(plan_found, indent=1)
