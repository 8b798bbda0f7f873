"""Flips single bits in the files of a store, and looks whether anybody believes them.

    python -m tests.faults.ledger.bits --store sqlite --flips 100

Each flip is made in a fresh copy of files that were closed cleanly. It is *found* if the store, its
own check or jobq reports an error, *harmless* if every job is as it was, and *believed* if a job is
different or gone and nothing reports it.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Literal

import apsw

from jobq.core.records.jobs import Filter, JobSpec, QueueName
from jobq.errors import JobqError
from jobq.stores import open_store
from scripts.postgres import FAST, Server, as_nobody
from tests.stores.postgres.servers import ask
from tests.stores.valkey import servers

QUEUE = QueueName("faults", "bits")
JOBS = 300
WAIT_S = 60

Finding = Literal["found", "harmless", "believed"]
Jobs = dict[str, tuple[str, bytes]]


async def put(url: str, rng: random.Random) -> None:
    """Store jobs with arguments that cannot be guessed."""
    async with open_store(url) as store:
        await store.put(
            [
                JobSpec(queue=QUEUE, id=f"j{n}", name="work", payload=_payload(rng))
                for n in range(JOBS)
            ]
        )


def _payload(rng: random.Random) -> bytes:
    return b'[["%s"],{}]' % rng.randbytes(100).hex().encode()


async def jobs(url: str) -> Jobs:
    """All jobs of the store."""
    found: Jobs = {}
    async with open_store(url) as store:
        cursor: str | None = None
        while True:
            page = await store.find(Filter(queue=QUEUE), cursor=cursor)
            found |= {record.id: (record.state, record.payload) for record in page.records}
            cursor = page.cursor
            if cursor is None:
                return found


def flip(files: list[Path], rng: random.Random) -> None:
    """Change one bit of one file. Every bit is equally likely."""
    place = rng.randrange(sum(path.stat().st_size for path in files))
    for path in files:
        size = path.stat().st_size
        if place < size:
            with path.open("r+b") as file:
                file.seek(place)
                (byte,) = file.read(1)
                file.seek(place)
                file.write(bytes([byte ^ 1 << rng.randrange(8)]))
            return
        place -= size


async def compare(url: str, before: Jobs) -> Finding:
    """Read all jobs and compare them."""
    try:
        now = await asyncio.wait_for(jobs(url), WAIT_S)
    except (JobqError, TimeoutError, apsw.Error):
        return "found"
    return "harmless" if now == before else "believed"


async def sqlite(
    folder: Path, flips: int, rng: random.Random, options: str = ""
) -> Counter[Finding]:
    """SQLite: its integrity check is asked first."""
    original = folder / "original.db"
    await put(f"sqlite:///{original}{options}", rng)
    before = await jobs(f"sqlite:///{original}")
    found: Counter[Finding] = Counter()
    for n in range(flips):
        copy = folder / f"{n}.db"
        shutil.copy(original, copy)
        flip([copy], rng)
        found["found" if _damaged(copy) else await compare(f"sqlite:///{copy}", before)] += 1
    return found


async def sqlite_checksums(folder: Path, flips: int, rng: random.Random) -> Counter[Finding]:
    """SQLite, and its pages have checksums."""
    return await sqlite(folder, flips, rng, "?checksums=yes")


def _damaged(path: Path) -> bool:
    try:
        connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
        try:
            return connection.execute("PRAGMA integrity_check(1)").fetchall() != [("ok",)]
        finally:
            connection.close()
    except apsw.Error:
        return True


async def valkey(folder: Path, flips: int, rng: random.Random) -> Counter[Finding]:
    """Valkey: a server that does not start with the file has found the bit."""
    options = ("--appendonly", "yes", "--appendfsync", "always")
    with servers.running(servers.valkey_binary(), folder, *options) as server:
        await put(server.url, rng)
        before = await jobs(server.url)
    found: Counter[Finding] = Counter()
    for n in range(flips):
        other = servers.Server(servers.valkey_binary(), folder / str(n), *options)
        shutil.copytree(server.folder / "appendonlydir", other.folder / "appendonlydir")
        flip(sorted((other.folder / "appendonlydir").glob("*.aof")), rng)
        try:
            other.start()
        except AssertionError:  # it has logged why it ended
            found["found"] += 1
        else:
            found[await compare(other.url, before)] += 1
        finally:
            other.stop()
    return found


async def postgres(folder: Path, flips: int, rng: random.Random) -> Counter[Finding]:
    """PostgreSQL with data checksums: pg_checksums reads the tables of jobq as the server does."""
    server = Server(FAST, within=folder)
    found: Counter[Finding] = Counter()
    try:
        checksums = [str(server.bin / "pg_checksums"), "--pgdata", str(server.data)]
        subprocess.run([*checksums, "--enable"], check=True, timeout=WAIT_S, **as_nobody())
        server.start()
        await put(server.url, rng)
        tables = "select pg_relation_filepath(oid) from pg_class where relkind in ('r', 'i', 't') and relnamespace = 'jobq'::regnamespace"  # noqa: E501
        paths = [server.data / path for (path,) in ask(server.url, tables)]
        server.stop()
        files = [path for path in paths if path.exists() and path.stat().st_size]
        for _ in range(flips):
            chosen = rng.choices(files, [path.stat().st_size for path in files])[0]
            whole = chosen.read_bytes()
            flip([chosen], rng)
            done = subprocess.run(
                [*checksums, "--check"], capture_output=True, timeout=WAIT_S, **as_nobody()
            )
            found["found" if done.returncode else "believed"] += 1
            chosen.write_bytes(whole)
    finally:
        server.remove()
    return found


STORES: dict[str, Callable[[Path, int, random.Random], Awaitable[Counter[Finding]]]] = {
    "sqlite": sqlite,
    "sqlite-checksums": sqlite_checksums,
    "valkey": valkey,
    "postgres": postgres,
}


async def main() -> int:
    """Print how many flips were found, harmless and believed. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Flip single bits in the files of a store.")
    parser.add_argument("--store", choices=STORES, required=True)
    parser.add_argument("--flips", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="jobq-bits-"))
    folder.chmod(0o777)  # PostgreSQL runs as another user
    try:
        found = await STORES[given.store](folder, given.flips, random.Random(given.seed))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    kinds: tuple[Finding, ...] = ("found", "harmless", "believed")
    sys.stdout.write(", ".join(f"{kind} {found[kind]}" for kind in kinds) + "\n")
    return 1 if found["believed"] else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
