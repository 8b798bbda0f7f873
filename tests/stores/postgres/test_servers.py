"""The servers that the tests of the PostgreSQL store use do what their docstrings say."""

from __future__ import annotations

import os
import select
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from scripts import postgres
from tests.stores.postgres import servers
from tests.stores.postgres.proxy import proxy_to
from tests.stores.postgres.servers import FAST, Server, ask
from tests.waiting import wait_until


@pytest.fixture(scope="module")
def shared() -> Iterator[Server]:
    """A server that no test of this file damages."""
    servers.postgres_or_skip()
    with servers.running(FAST) as server:
        yield server


def test_the_server_has_the_version_that_was_asked_for(shared: Server) -> None:
    wanted = os.environ.get("JQ_POSTGRES", postgres.DEFAULT_VERSION)
    ((number,),) = ask(shared.url, "show server_version_num")
    assert int(number) // 10_000 == int(wanted)


def test_only_the_settings_for_benchmarks_sync_commits(shared: Server) -> None:
    assert ask(shared.url, "show fsync") == [("off",)]
    assert not {"fsync", "synchronous_commit", "full_page_writes"} & set(postgres.DURABLE)


def test_an_unknown_version_names_the_package_to_install() -> None:
    with pytest.raises(servers.Missing, match=r"no PostgreSQL 9: apt install postgresql-9$"):
        postgres.binaries("9")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root starts servers as another user")
def test_root_starts_a_server_from_a_folder_that_is_closed_to_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers.postgres_or_skip()
    wheel = next(postgres._candidates(postgres.DEFAULT_VERSION)).parents[1]
    closed = tmp_path / "closed"
    for part in wheel.parent.glob(f"{wheel.name}*"):
        shutil.copytree(part, closed / part.name, symlinks=True)
    closed.chmod(0o700)
    here = closed / wheel.name / "pginstall" / "bin"
    monkeypatch.setattr(postgres, "_candidates", lambda version: [here])
    with servers.running(FAST, version="16") as server:
        assert ask(server.url, "select 7") == [(7,)]
        assert not server.bin.is_relative_to(closed)
        assert postgres.binaries("16") == server.bin, "the copy is made once"
    shutil.rmtree(server.bin.parents[2])


def test_a_removed_server_leaves_no_process_and_no_data() -> None:
    servers.postgres_or_skip()
    with servers.running(FAST) as server:
        pid, folder = server.pid, server.folder
        assert folder.exists()
    assert not folder.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize("sig", [signal.SIGINT, signal.SIGQUIT, signal.SIGKILL])
def test_a_server_starts_again_with_its_data_on_the_same_port(sig: int) -> None:
    servers.postgres_or_skip()
    with servers.running(FAST) as server:
        ask(server.url, "create table kept as select 7 as n")
        port = server.port
        server.stop(sig)
        with pytest.raises(psycopg.OperationalError):
            ask(server.url, "select 1")
        server.start()
        assert (server.port, ask(server.url, "select n from kept")) == (port, [(7,)])


def test_a_frozen_server_answers_after_it_is_thawed() -> None:
    servers.postgres_or_skip()
    with servers.running(FAST) as server, closing(psycopg.connect(server.url)) as connection:
        connection.execute("select 1")
        server.freeze()
        connection.pgconn.send_query(b"select 2")
        assert not _readable(connection, 0.3)
        server.thaw()
        assert _readable(connection, 20)


def test_a_full_tablespace_fails_the_statement_and_nothing_else(shared: Server) -> None:
    with servers.small_disk(20) as disk:
        ask(shared.url, f"create tablespace small location '{disk}'")
        fill = "create table big tablespace small as select repeat('x', 500) from {}"
        with pytest.raises(psycopg.errors.DiskFull):
            ask(shared.url, fill.format("generate_series(1, 100000)"))
        ask(shared.url, fill.format("generate_series(1, 100)"))
        ask(shared.url, "drop table big")
        ask(shared.url, "drop tablespace small")


def test_a_promoted_replica_has_every_row_and_accepts_writes() -> None:
    servers.postgres_or_skip()
    with servers.running_pair() as pair:
        ask(pair.url, "create table kept as select 7 as n")
        pair.wait_until_in_sync()
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            ask(pair.replica.url, "insert into kept values (8)")
        pair.primary.kill()
        pair.promote()
        ask(pair.url, "insert into kept values (8)")
        assert ask(pair.url, "select n from kept order by n") == [(7,), (8,)]


def test_a_commit_waits_for_a_synchronous_replica() -> None:
    servers.postgres_or_skip()
    with servers.running_pair(synchronous=True) as pair:
        pair.replica.freeze()
        with closing(psycopg.connect(pair.primary.url, autocommit=True)) as connection:
            connection.pgconn.send_query(b"create table kept as select 7 as n")
            assert not _readable(connection, 0.3)
            pair.replica.thaw()
            assert _readable(connection, 20)


def test_pgbouncer_shares_few_server_connections_among_clients(shared: Server) -> None:
    with servers.running_bouncer(shared, connections=2) as bouncer:
        clients = [psycopg.connect(bouncer.url, autocommit=True) for _ in range(6)]
        try:
            pids = {_one(client, "select pg_backend_pid()") for client in clients}
            assert len(pids) <= 2
        finally:
            for client in clients:
                client.close()


def test_pgbouncer_in_transaction_mode_loses_what_belongs_to_a_session(shared: Server) -> None:
    with (
        servers.running_bouncer(shared, connections=2) as bouncer,
        closing(psycopg.connect(bouncer.url, autocommit=True)) as first,
        closing(psycopg.connect(bouncer.url)) as second,
    ):
        mine = _one(first, "select pg_backend_pid()")
        assert _one(second, "select pg_backend_pid()") == mine  # the transaction stays open
        assert _one(first, "select pg_backend_pid()") != mine


def test_a_proxy_forwards_and_delays(shared: Server) -> None:
    with proxy_to(shared.port) as proxy, closing(psycopg.connect(proxy.url())) as connection:
        started = time.monotonic()
        assert _one(connection, "select 1") == 1
        quick = time.monotonic() - started
        proxy.delay_s = 0.2
        started = time.monotonic()
        assert _one(connection, "select 2") == 2
        assert time.monotonic() - started >= 0.4 > quick


def test_a_swallowing_proxy_keeps_connections_open_without_an_answer(shared: Server) -> None:
    with proxy_to(shared.port) as proxy, closing(psycopg.connect(proxy.url())) as connection:
        assert _one(connection, "select 1") == 1
        proxy.swallow()
        connection.pgconn.send_query(b"select 2")
        assert not _readable(connection, 0.3)
        with pytest.raises(psycopg.errors.ConnectionTimeout):
            psycopg.connect(proxy.url(), connect_timeout=2)
        proxy.restore()
        assert ask(proxy.url(), "select 3") == [(3,)]


def test_a_cut_resets_open_connections_and_admits_new_ones(shared: Server) -> None:
    with proxy_to(shared.port) as proxy, closing(psycopg.connect(proxy.url())) as connection:
        assert _one(connection, "select 1") == 1
        assert proxy.cut() == 1
        with pytest.raises(psycopg.OperationalError, match=r"reset by peer|closed the connection"):
            connection.execute("select 2")
        assert ask(proxy.url(), "select 3") == [(3,)]


def test_a_refusing_proxy_admits_nobody_until_it_is_restored(shared: Server) -> None:
    with proxy_to(shared.port) as proxy:
        proxy.refuse()
        with pytest.raises(psycopg.OperationalError):
            psycopg.connect(proxy.url(), connect_timeout=5)
        proxy.restore()
        assert ask(proxy.url(), "select 3") == [(3,)]


def test_a_client_that_leaves_is_seen_by_the_server(shared: Server) -> None:
    with proxy_to(shared.port) as proxy:
        connection = psycopg.connect(proxy.url())
        pid = _one(connection, "select pg_backend_pid()")
        connection.close()
        wait_until(
            lambda: not ask(shared.url, "select 1 from pg_stat_activity where pid = %s", pid),
            "the backend to end",
        )


def _one(connection: psycopg.Connection[tuple[int]], statement: str) -> int:
    row = connection.execute(statement.encode()).fetchone()
    assert row is not None
    return row[0]


def _readable(connection: psycopg.Connection[tuple[int]], seconds: float) -> bool:
    """Whether the server sends anything in this time."""
    return bool(select.select([connection.pgconn.socket], [], [], seconds)[0])
