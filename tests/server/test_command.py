"""jq-server as a process: its defaults, its probes, and how signals stop it."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from click.testing import CliRunner
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from jobq import Queue, Worker
from jobq.cli.server import main
from tests.server.process import ServerProcess
from tests.waiting import PATIENCE_S


@pytest.fixture(autouse=True)
def without_variables_of_other_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("JQ_"):
            monkeypatch.delenv(name)


def get(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as e:
        with e:
            return e.code, e.read().decode()


@contextmanager
def endless_call(port: int) -> Iterator[None]:
    """A stream that the client keeps open: a question about the services, and no end."""
    over = threading.Event()

    def questions() -> Iterator[reflection_pb2.ServerReflectionRequest]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        over.wait(PATIENCE_S)

    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        answers = stub.ServerReflectionInfo(questions())
        assert next(iter(answers)).list_services_response.service
        yield
        over.set()


def test_without_any_configuration_it_serves_a_file_on_this_machine(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        assert get(server.port("/healthz"), "/healthz") == (200, "ok\n")
        assert get(server.port("/healthz"), "/readyz") == (200, "ok\n")
        status, text = get(server.port("/metrics"), "/metrics")
        assert (status, "jobq_store_up 1.0" in text) == (200, True)
        assert server.stop() == 0
    assert (tmp_path / "jobq.db").exists()
    assert "127.0.0.1" in server.text


async def test_sigterm_lets_a_running_job_settle_and_nothing_is_lost(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        queue = Queue("mail", url=server.url)
        started, finish = asyncio.Event(), asyncio.Event()

        @queue.task
        async def send(n: int) -> int:
            started.set()
            await finish.wait()
            return n

        port = await asyncio.to_thread(server.port)
        async with queue, Worker(queue):
            job = await send.enqueue(7)
            await asyncio.wait_for(started.wait(), PATIENCE_S)
            assert await asyncio.to_thread(server.stop) == 0

            # The same file, served again at the same address, as a rolling restart does.
            with ServerProcess(tmp_path, "--grpc-port", str(port)) as again:
                await asyncio.to_thread(again.port)
                finish.set()
                assert await job.result(timeout=PATIENCE_S) == 7


def test_a_stop_ends_in_the_order_of_the_design(tmp_path: Path) -> None:
    with ServerProcess(tmp_path, "--log-level", "debug") as server:
        server.port()
        assert server.stop() == 0
    steps = ["SIGTERM: stopping", "no more calls", "upkeep has ended", "store is closed", "stopped"]
    places = [server.text.find(step) for step in steps]
    assert -1 not in places, server.text
    assert places == sorted(places)


def test_ctrl_c_stops_as_sigterm_does(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server:
        server.port()
        assert server.stop(signal.SIGINT) == 0


def test_a_dry_run_says_what_it_found_and_exits(tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    config.write_text("store: {url: 'memory://dry'}\nscheduler: {interval_ms: 500}")
    result = CliRunner().invoke(main, ["--config", str(config), "--dry-run"])
    assert result.exit_code == 0, result.output
    assert "ok      store memory://dry (from store.url): responds" in result.output
    assert "warning scheduler.interval_ms does nothing here" in result.output


def test_a_dry_run_fails_with_what_is_wrong(tmp_path: Path) -> None:
    config = tmp_path / "server.yaml"
    config.write_text(
        "store: {url: 'valkey://127.0.0.1:1'}\n"
        "grpc: {tls: {cert_path: nowhere.crt, key_path: nowhere.key}}\n"
    )
    result = CliRunner().invoke(main, ["--config", str(config), "--dry-run"])
    assert result.exit_code == 1
    assert "PROBLEM store valkey://127.0.0.1:1" in result.output
    assert "PROBLEM certificate: cannot read nowhere.crt" in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "nowhere.yaml"], "cannot read nowhere.yaml"),
        (["--url", "mysql://x"], "no store for"),
    ],
)
def test_a_wrong_call_is_one_line_without_a_traceback(arguments: list[str], message: str) -> None:
    before = signal.getsignal(signal.SIGTERM)
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert signal.getsignal(signal.SIGTERM) is before, "signals are not ignored after an error"
    assert message in result.output
    assert "Traceback" not in result.output


def test_a_call_that_does_not_end_gets_the_grace_time(tmp_path: Path) -> None:
    with (
        ServerProcess(tmp_path, JQ_SHUTDOWN_GRACE_PERIOD="500ms") as server,
        endless_call(server.port()),
    ):
        assert server.stop() == 0


def test_a_second_signal_stops_at_once(tmp_path: Path) -> None:
    with ServerProcess(tmp_path) as server, endless_call(server.port()):
        server.process.send_signal(signal.SIGTERM)
        server.wait_for("SIGTERM: stopping")
        status, text = get(server.port("/healthz"), "/readyz")
        assert (status, text) == (503, "the server stops\n")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(PATIENCE_S) == 0
    assert "stopping at once" in server.text
