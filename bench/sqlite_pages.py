"""Measurements behind the SQLite store's page size, driver and checkpoints.

    python -m bench.sqlite_pages

Each value is the best of several rounds, in µs:

- a commit that changes about as many pages as one job, by page size, with and without SQLite's
  automatic checkpoints
- claiming a hundred of many jobs, in SQLite's :memory: and in a file that is never synced
- inserting and reading a row with sqlite3 and with apsw
- a call in another thread, compared with a direct call
"""

from __future__ import annotations

import asyncio
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
from rich.console import Console
from rich.progress import track
from rich.table import Table

from jobq.stores.relational.rows import NewJob
from jobq.stores.sqlite import statements
from jobq.stores.sqlite.schema import every_statement

ROUNDS = 5
COMMITS = 2000


def best(work: Callable[[], Any], n: int) -> float:
    """µs per call, in the best round."""
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        for _ in range(n):
            work()
        times.append((time.perf_counter() - started) / n * 1e6)
    return min(times)


def commits(page: int, checkpoint: int) -> float:
    """A transaction that changes about as many pages as enqueueing one job."""
    with tempfile.TemporaryDirectory() as folder:
        connection = apsw.Connection(str(Path(folder) / "pages.db"))
        connection.execute(f"PRAGMA page_size = {page}")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {checkpoint}")
        connection.execute("CREATE TABLE a (pk INTEGER PRIMARY KEY, id TEXT, n INT, data BLOB)")
        connection.execute("CREATE UNIQUE INDEX a_id ON a (id)")
        connection.execute("CREATE INDEX a_n ON a (n)")
        connection.execute("CREATE TABLE b (pk INTEGER PRIMARY KEY, data BLOB)")
        connection.execute("CREATE TABLE c (pk INTEGER PRIMARY KEY, n INT)")
        connection.execute("INSERT INTO c VALUES (1, 0)")
        number = iter(range(10**9))

        def work() -> None:
            n = next(number)
            connection.execute("BEGIN IMMEDIATE")
            connection.execute(
                "INSERT INTO a VALUES (NULL, ?, ?, ?)", (f"id{n:012d}", n, b"x" * 150)
            )
            connection.execute("INSERT INTO b VALUES (NULL, ?)", (b"x" * 90,))
            connection.execute("UPDATE c SET n = n + 1")
            connection.execute("COMMIT")

        time_taken = best(work, COMMITS)
        connection.close()
        return time_taken


def large(path: str, count: int) -> float:
    """Claim a hundred of `count` jobs and commit."""
    connection = apsw.Connection(path)
    connection.execute("PRAGMA page_size = 2048")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA cache_size = -65536")
    hot = schema(connection)
    with connection:
        connection.executemany(hot["insert_job"], (job(n) for n in range(count)))

    def work() -> None:
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(hot["claim_plain"], (".w/1", "w", 1, 2, 1, 100)).fetchall()
        connection.execute("COMMIT")

    time_taken = best(work, 20)
    connection.close()
    return time_taken


def schema(connection: Any) -> dict[str, str]:
    """Create the tables and a queue. Returns the statements."""
    for statement in every_statement():
        connection.execute(statement)
    hot = statements.load("hot.sql")
    connection.execute(hot["make_queue"], ("t", "q"))
    return hot


def job(n: int) -> NewJob:
    """The row of a waiting job."""
    payload = b"x" * 100
    return NewJob(1, f"id{n:012d}", 2, 0, n, None, None, 0, "noop", 0, 1, 1, "json", None, payload)


def rows(connection: Any) -> tuple[float, float]:
    """µs to insert a job's row, and to read a queue's row."""
    hot = schema(connection)
    number = iter(range(10**9))
    insert = best(lambda: connection.execute(hot["insert_job"], job(next(number))), COMMITS)
    return insert, best(lambda: connection.execute(hot["queue"], ("t", "q")).fetchone(), COMMITS)


async def hop() -> tuple[float, float]:
    """µs of an empty call, directly and in another thread."""
    loop = asyncio.get_running_loop()

    async def by_thread(n: int) -> float:
        started = time.perf_counter()
        for _ in range(n):
            await loop.run_in_executor(None, int)
        return (time.perf_counter() - started) / n * 1e6

    await by_thread(100)
    return best(int, COMMITS), min([await by_thread(COMMITS) for _ in range(ROUNDS)])


def main() -> None:
    """Measure and print."""
    console = Console()
    pages = Table(
        "page size",
        "with automatic checkpoints",
        "without",
        title="µs per commit of one job's pages",
    )
    for page in track(
        (1024, 2048, 4096, 8192), "commits by page size", console=console, transient=True
    ):
        pages.add_row(str(page), f"{commits(page, 1000):.0f}", f"{commits(page, 0):.0f}")
    sizes = Table(
        "jobs in the table",
        "SQLite's :memory:",
        "a file without syncs",
        title="µs to claim a hundred and commit",
    )
    for count in track((20_000, 500_000), "commits by size", console=console, transient=True):
        with tempfile.TemporaryDirectory() as folder:
            sizes.add_row(
                f"{count:,}",
                f"{large(':memory:', count):.0f}",
                f"{large(f'{folder}/large.db', count):.0f}",
            )
    drivers = Table(
        "driver", "insert a job's row", "read a queue's row", title="µs per statement, in memory"
    )
    for name, connection in (
        (f"sqlite3 ({sqlite3.sqlite_version})", sqlite3.connect(":memory:", isolation_level=None)),
        (f"apsw ({apsw.sqlite_lib_version()})", apsw.Connection(":memory:")),
    ):
        insert, read = rows(connection)
        drivers.add_row(name, f"{insert:.1f}", f"{read:.1f}")
    here, there = asyncio.run(hop())
    hops = Table("direct", "in another thread", title="µs per empty call")
    hops.add_row(f"{here:.2f}", f"{there:.0f}")
    for table in (pages, sizes, drivers, hops):
        console.print(table)


if __name__ == "__main__":
    main()
