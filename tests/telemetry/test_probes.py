"""The HTTP server of /metrics, /healthz and /readyz."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading

import pytest

from jobq import ConfigError
from jobq.console import probes
from jobq.console.probes import Answer, Probes, Pulse, answer, healthz
from tests.telemetry.http import fetch, get


def ports(served: Probes) -> list[int]:
    return [port for _, port in served.addresses]


def test_each_port_serves_its_routes() -> None:
    with Probes({0: {"/a": lambda: Answer(200, b"one", "text/x")}}, host="127.0.0.1") as served:
        (port,) = ports(served)
        assert get(port, "/a?debug=1") == (200, "one")
        assert get(port, "/a", "HEAD") == (200, "")
        assert get(port, "/b") == (404, "not found; this port serves /a\n")
        assert get(port, "/a", "POST")[0] == 501
    with pytest.raises(OSError):
        get(port, "/a")


def test_a_port_that_is_taken_is_an_error_before_anything_runs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"cannot serve /healthz on port {port} of 127.0.0.1"):
            Probes({port: {"/healthz": lambda: answer(None)}}, host="127.0.0.1")


def test_a_route_that_raises_is_logged_and_the_next_request_is_served(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken() -> Answer:
        raise ValueError("no such thing")

    routes = {"/broken": broken, "/ok": lambda: answer(None)}
    with Probes({0: routes}, host="127.0.0.1") as served:
        (port,) = ports(served)
        assert get(port, "/broken") == (500, "/broken failed: see the log\n")
        assert get(port, "/ok") == (200, "ok\n")
    (record,) = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert record.getMessage() == "/broken failed"


def test_a_client_that_sends_nothing_keeps_nobody_else_waiting() -> None:
    with (
        Probes({0: {"/ok": lambda: answer(None)}}, host="127.0.0.1") as served,
        socket.create_connection(("127.0.0.1", ports(served)[0])),
    ):
        assert get(ports(served)[0], "/ok") == (200, "ok\n")


async def test_a_loop_that_is_blocked_for_long_is_not_healthy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probes, "BLOCKED_S", 0.0)
    route = healthz(Pulse(asyncio.get_running_loop()))
    assert route() == Answer(200, b"ok\n")
    status, body, _ = route()  # the loop had no chance to run since
    assert (status, body) == (503, b"the event loop has been blocked for 0 s\n")
    await asyncio.sleep(0)
    assert route().status == 200


async def test_a_blocked_loop_does_not_keep_the_probe_from_its_reply() -> None:
    with Probes(
        {0: {"/healthz": healthz(Pulse(asyncio.get_running_loop()))}}, host="127.0.0.1"
    ) as served:
        (port,) = ports(served)
        assert await fetch(port, "/healthz") == (200, "ok\n")
        replies: list[tuple[int, str]] = []
        probe = threading.Thread(target=lambda: replies.append(get(port, "/healthz")))
        probe.start()
        probe.join(10)  # blocks the loop
        assert replies == [(200, "ok\n")]


def test_a_closed_loop_is_not_healthy() -> None:
    loop = asyncio.new_event_loop()
    loop.close()
    assert healthz(Pulse(loop))() == Answer(503, b"the event loop is closed\n")
