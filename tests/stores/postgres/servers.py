"""Real PostgreSQL servers for tests: one, a primary with a replica, and PgBouncer before one."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from scripts.ports import free_port
from scripts.postgres import FAST, NOBODY, Missing, Server, as_nobody, binaries, new_folder, running
from tests.waiting import wait_until

__all__ = [
    "FAST", "Missing", "Server", "running", "postgres_or_skip", "running_pair", "Pair",
    "running_bouncer", "Bouncer", "ask", "small_disk",
]  # fmt: skip


def postgres_or_skip() -> None:
    """Without PostgreSQL on this machine, skips the test and says what to install."""
    try:
        binaries()
    except Missing as missing:
        pytest.skip(str(missing))


def ask(url: str, statement: str, *values: object) -> list[tuple[Any, ...]]:
    """Run one statement on a connection of its own, and return its rows."""
    with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
        cursor = connection.execute(statement.encode(), values or None)
        return cursor.fetchall() if cursor.description else []


class Pair:
    """A primary and a streaming replica. `promote` makes the replica the new primary."""

    def __init__(self, primary: Server, replica: Server) -> None:
        self.primary = primary
        self.replica = replica

    @property
    def url(self) -> str:
        """Both hosts, of which a client chooses the one that accepts writes."""
        hosts = f"127.0.0.1:{self.primary.port},127.0.0.1:{self.replica.port}"
        return f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"

    def wait_until_in_sync(self) -> None:
        """Return once the replica has replayed everything that the primary has written."""
        ((written,),) = ask(self.primary.url, "select pg_current_wal_lsn()::text")
        question = f"select pg_last_wal_replay_lsn() >= '{written}'"
        wait_until(lambda: ask(self.replica.url, question) == [(True,)], "the replica to catch up")

    def promote(self) -> None:
        """Make the replica a primary. The old primary is not stopped: kill it before."""
        assert ask(self.replica.url, "select pg_promote(true, 30)") == [(True,)]


@contextmanager
def running_pair(settings: dict[str, str] = FAST, *, synchronous: bool = False) -> Iterator[Pair]:
    """A primary with a replica that streams from it.

    With `synchronous`, a commit returns after the replica has it too, so a failover loses nothing.
    """
    with ExitStack() as stack:
        primary = stack.enter_context(running(settings))
        replica = Server(settings, copy_of=primary)
        stack.callback(replica.remove)
        replica.start()
        wait_until(
            lambda: ask(primary.url, "select 1 from pg_stat_replication where state = 'streaming'"),
            "the replica to stream",
        )
        if synchronous:
            ask(primary.url, "alter system set synchronous_standby_names = '*'")
            ask(primary.url, "select pg_reload_conf()")
            question = "select 1 from pg_stat_replication where sync_state = 'sync'"
            wait_until(lambda: ask(primary.url, question), "the replica to be synchronous")
        yield Pair(primary, replica)


class Bouncer:
    """A running PgBouncer in front of a server."""

    def __init__(self, port: int) -> None:
        self.port = port

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        """The address of one of the server's databases, through PgBouncer."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"


@contextmanager
def running_bouncer(
    server: Server, *, mode: str = "transaction", connections: int = 5
) -> Iterator[Bouncer]:
    """PgBouncer with a small pool. In transaction mode a session changes its server connection.

    `max_prepared_statements = 0` is the setting of older versions: prepared statements fail.
    """
    binary = shutil.which("pgbouncer", path="/usr/sbin:/usr/bin:/usr/local/bin:/opt/homebrew/bin")
    if binary is None:
        pytest.skip("no PgBouncer: apt install pgbouncer")
    folder = new_folder()
    bouncer = Bouncer(free_port())
    settings = {
        "listen_addr": "127.0.0.1",
        "listen_port": str(bouncer.port),
        "unix_socket_dir": "",
        "auth_type": "any",
        "pool_mode": mode,
        "default_pool_size": str(connections),
        "max_client_conn": "200",
        "ignore_startup_parameters": "extra_float_digits",
    }
    lines = ["[databases]", f"* = host=127.0.0.1 port={server.port} user=postgres", "[pgbouncer]"]
    lines += [f"{name} = {value}" for name, value in settings.items()]
    (folder / "pgbouncer.ini").write_text("\n".join(lines) + "\n")
    process = _started([binary, str(folder / "pgbouncer.ini")], folder)
    try:
        wait_until(lambda: process.poll() is not None or _answers(bouncer.url), "PgBouncer")
        assert process.poll() is None, (folder / "log").read_text()
        yield bouncer
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(20)
        shutil.rmtree(folder, ignore_errors=True)


def _started(command: list[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **as_nobody()
        )


def _answers(url: str) -> bool:
    try:
        return ask(url, "select 1") == [(1,)]
    except psycopg.OperationalError:
        return False


@contextmanager
def small_disk(megabytes: int) -> Iterator[Path]:
    """A disk that can be filled: a tmpfs, which only root can mount.

    As a tablespace, it fails statements with DiskFull. As the folder of a server (`within`), it
    also ends the server, because PostgreSQL cannot go on without its log.
    """
    folder = new_folder()
    mounted = subprocess.run(
        [
            "mount",
            "-t",
            "tmpfs",
            "-o",
            f"size={megabytes}m,uid={NOBODY},gid={NOBODY}",
            "tmpfs",
            str(folder),
        ],
        capture_output=True,
        text=True,
        timeout=20,
    )
    if mounted.returncode != 0:
        pytest.skip(f"a disk to fill cannot be mounted: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=20)
        folder.rmdir()
