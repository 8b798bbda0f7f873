"""`jq-ctl web` and jq-server's /ui as processes: where they listen, who may use them, stopping."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from jobq.cli.ctl import main
from jobq.core.records.jobs import QueueName
from jobq.stores import open_store
from tests.server.kit import SECRET, token
from tests.server.process import ServerProcess
from tests.waiting import PATIENCE_S, wait_until
from tests.web.kit import fill

MAIL = {"tenant": "acme", "queue": "mail"}


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A SQLite file with jobs."""
    url = f"sqlite:///{tmp_path}/jobs.db"

    async def filled() -> None:
        async with open_store(url) as store:
            await fill(store)

    asyncio.run(filled())
    return url


@contextmanager
def web(url: str, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A running `jq-ctl web`, and its address."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("JQ_")}
    process = subprocess.Popen(
        [*(sys.executable, "-m", "jobq.cli.ctl", "--url", url, "web", "--port", "0"), *arguments],
        env=clean,
        stdout=subprocess.PIPE,
        text=True,
    )
    said: list[str] = []
    assert process.stdout is not None
    reading = threading.Thread(target=lambda out: said.extend(out), args=(process.stdout,))
    reading.start()
    try:
        found = wait_until(lambda: re.search(r"at (http://\S+)/\n", "".join(said)), "its address")
        yield process, found[1].replace("0.0.0.0", "127.0.0.1")
    finally:
        process.kill()
        process.wait(PATIENCE_S)
        reading.join(PATIENCE_S)
        process.stdout.close()


def test_jq_ctl_web_serves_this_machine_names_its_user_and_stops_on_sigterm(url: str) -> None:
    with web(url) as (process, address), httpx.Client(base_url=address) as http:
        assert http.get("/").status_code == 200
        token = http.get("/api/v1/session").json()["csrf_token"]
        reply = http.post("/api/v1/queue/pause", json=MAIL, headers={"X-CSRF-Token": token})
        assert reply.status_code == 200
        with http.stream("GET", "/live", params=MAIL) as live:
            assert live.status_code == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0, "an open stream does not delay the stop"
    actor = asyncio.run(_last_actor(url))
    assert re.fullmatch(r".+@.+ \(dashboard\)", actor or "")


async def _last_actor(url: str) -> str | None:
    async with open_store(url) as store:
        return (await store.read_events(QueueName("acme", "mail"), after="0")).events[-1].actor


def test_jq_ctl_web_with_tokens_lets_people_sign_in_from_elsewhere(
    url: str, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("a-token-that-is-long-enough alice admin\n")
    options = ("--host", "0.0.0.0", "--tokens-file", str(tokens), "--read-only")
    with web(url, *options) as (_, address), httpx.Client(base_url=address) as http:
        assert http.get("/").headers["location"].startswith("/sign-in")
        bearer = {"Authorization": "Bearer a-token-that-is-long-enough"}
        session = http.get("/api/v1/session", headers=bearer).json()
        assert (session["subject"], session["read_only"]) == ("alice", True)


def test_jq_ctl_web_refuses_to_listen_beyond_this_machine_without_sign_in(url: str) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        done = CliRunner().invoke(main, ["--url", url, "web", "--host", host])
        assert done.exit_code == 2
        assert "--tokens-file" in done.output


def test_jq_ctl_web_says_what_is_wrong_with_its_port_and_its_tokens(
    url: str, tmp_path: Path
) -> None:
    none = CliRunner().invoke(main, ["--url", url, "web", "--tokens-file", str(tmp_path / "none")])
    assert "cannot read the tokens" in none.output
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        taken = CliRunner().invoke(main, ["--url", url, "web", "--port", port])
    assert f"cannot listen on port {port}" in taken.output


def test_jq_server_serves_the_dashboard_beside_its_probes_with_its_tokens(
    url: str, tmp_path: Path
) -> None:
    with (
        ServerProcess(tmp_path, "--web", "--url", url, JQ_AUTH_SECRET=SECRET.decode()) as server,
        httpx.Client(
            base_url=f"http://127.0.0.1:{server.port('/readyz')}", follow_redirects=True
        ) as http,
    ):
        assert http.get("/healthz").text == http.get("/readyz").text == "ok\n"
        assert http.get("/other").status_code == 404
        page = http.get("/ui/queue", params=MAIL)
        assert page.url.path == "/ui/sign-in"
        signed_in = http.post(
            "/ui/sign-in", data={"token": token(), "next": "/ui/queue?tenant=acme&queue=mail"}
        )
        assert signed_in.url.path == "/ui/queue"
        assert 'href="/ui/' in signed_in.text
        session = http.get("/ui/api/v1/session").json()
        assert session["tenant"] == "acme"
        refused = http.post(
            "/ui/api/v1/queue/pause", json=MAIL, headers={"X-CSRF-Token": session["csrf_token"]}
        )
        assert refused.status_code == 403, "the token has produce, work and read"
        assert http.get("/ui/api/v1/queue", params={**MAIL, "tenant": "other"}).status_code == 404
        with http.stream("GET", "/ui/live", params=MAIL):
            assert server.stop() == 0


def test_jq_server_without_tokens_serves_its_dashboard_to_this_machine_only(
    url: str, tmp_path: Path
) -> None:
    with ServerProcess(tmp_path, "--web", "--url", url) as server:
        base = f"http://127.0.0.1:{server.port('/readyz')}"
        assert httpx.get(f"{base}/ui/").status_code == 200
        assert httpx.get(f"{base}/ui/", headers={"Host": "evil.example"}).status_code == 403
        assert httpx.get(f"{base}/ui").headers["location"] == "/ui/"
