"""The web applications of examples/web run under uvicorn and gunicorn, each in its own process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from scripts.ports import free_port
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("httpx", "fastapi", "flask", "uvicorn", "gunicorn")),
    reason="pip install jobq[dev] for httpx, fastapi, flask, uvicorn and gunicorn",
)

WEB = Path(__file__).parents[2] / "examples/web"
STOP_S = 20.0
"""Seconds in which a server has to exit after SIGTERM."""
STOPPED = (0, -signal.SIGTERM)
"""How a server ends after SIGTERM. uvicorn shuts down first and then ends by the signal."""

UVICORN = ["uvicorn", "--timeout-graceful-shutdown", "5", "--port", "{port}"]
GUNICORN = ["gunicorn", "--graceful-timeout", "5", "--bind", "127.0.0.1:{port}"]
GUNICORN_ASGI = [*GUNICORN, "--worker-class", "asgi"]
GUNICORN_THREADS = [*GUNICORN, "--worker-class", "gthread", "--threads", "8"]


@contextmanager
def process(module: str, *arguments: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """A Python module as a process, which SIGTERM has to stop in time and without an error."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JQ_")}
    environment["JQ_URL"] = f"sqlite:///{folder}/jobs.db"
    paths = [str(WEB), environment.get("PYTHONPATH", "")]
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    errors = folder / f"{module.replace('.', '-')}.log"
    with (
        errors.open("w") as log,
        subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            text=True,
        ) as running,
    ):
        try:
            yield running
            running.send_signal(signal.SIGTERM)
            assert running.wait(STOP_S) in STOPPED, errors.read_text()
            said = errors.read_text()
            assert said.count("Traceback") <= said.count("failed for good"), said
        finally:
            running.kill()


class Site:
    """A running application, as a browser sees it."""

    def __init__(self, url: str, server: subprocess.Popen[str]) -> None:
        import httpx

        self.server = server
        self.http = httpx.Client(base_url=url, timeout=PATIENCE_S)

    def answers(self) -> bool:
        import httpx

        try:
            self.http.get("/nothing-here")
        except httpx.TransportError:
            return False
        return True

    def events(self, path: str, **headers: str) -> list[tuple[str, Any]]:
        """The server-sent events of a stream, until the server ends it."""
        found: list[tuple[str, Any]] = []
        with self.http.stream("GET", path, headers=headers) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            event = ""
            for line in response.iter_lines():
                if line.startswith("event: "):
                    event = line.removeprefix("event: ")
                elif line.startswith("data: "):
                    found.append((event, json.loads(line.removeprefix("data: "))))
        return found


@contextmanager
def site(server: list[str], app: str, folder: Path, worker: str | None = None) -> Iterator[Site]:
    """An application under a server, and a jq-worker for its queue."""
    port = free_port()
    command = [part.format(port=port) for part in server]
    with ExitStack() as stack:
        started = stack.enter_context(
            process(command[0], *command[1:], f"{app}:app", folder=folder)
        )
        if worker is not None:
            stack.enter_context(
                process("jobq.cli.worker", "--app", f"{app}:{worker}", folder=folder)
            )
        running = Site(f"http://127.0.0.1:{port}", started)
        with running.http:
            wait_until(running.answers, f"{app} under {command[0]}")
            yield running


def lines(events: list[tuple[str, Any]]) -> list[str]:
    return [line for _, data in events for line in data["lines"]]


@pytest.mark.parametrize("server", [UVICORN, GUNICORN_ASGI], ids=["uvicorn", "gunicorn"])
def test_a_fastapi_application_follows_a_report_and_shows_its_result(
    server: list[str], tmp_path: Path
) -> None:
    with site(server, "fastapi_app", tmp_path, worker="reports") as web:
        accepted = web.http.post("/reports", json={"title": "sales", "pages": 4})
        assert accepted.status_code == 202
        assert accepted.json()["state"] in ("waiting", "active")
        place = accepted.headers["location"]
        events = web.events(f"{place}/events")
        assert lines(events) == [f"page {n} is ready" for n in (1, 2, 3, 4)]
        assert events[-1][0] == "end"
        assert events[-1][1]["result"] == "sales, 4 pages"
        assert len(events) > 3, "the browser sees the pages one by one"

        done = web.http.get(place)
        assert (done.status_code, done.json()["result"]) == (200, "sales, 4 pages")
        assert web.http.post("/reports/now", json={"title": "tax", "pages": 1}).json() == (
            "tax, 1 pages"
        )
        rejected = web.http.post("/reports/now", json={"title": "empty", "pages": 0})
        assert (rejected.status_code, rejected.json()["title"]) == (422, "The job was rejected")
        assert web.http.get("/reports/nobody").status_code == 404
        assert web.http.get("/reports/nobody/events").status_code == 404
        assert "EventSource" in web.http.get("/").text


@pytest.mark.parametrize("server", [UVICORN, GUNICORN_ASGI], ids=["uvicorn", "gunicorn"])
def test_a_starlette_application_runs_its_own_worker(server: list[str], tmp_path: Path) -> None:
    with site(server, "starlette_app", tmp_path) as web:
        accepted = web.http.post("/thumbnails/cat.png", headers={"x-user": "ada"})
        place = accepted.headers["location"]
        events = web.events(f"{place}/events")
        assert events[-1][1]["result"] == "small-cat.png"
        assert web.http.get(place, headers={"x-user": "ada"}).json()["progress"] == 100
        assert web.http.get(place, headers={"x-user": "eve"}).status_code == 404
        assert web.http.get("/jobs/nobody", headers={"x-user": "eve"}).status_code == 404


def test_a_flask_application_does_the_same_without_asyncio(tmp_path: Path) -> None:
    with site(GUNICORN_THREADS, "flask_app", tmp_path, worker="mail") as web:
        accepted = web.http.post("/mails", data={"to": "ada", "copies": "3"})
        assert accepted.status_code == 202
        place = accepted.headers["location"]
        assert lines(web.events(f"{place}/events")) == [f"copy {n} to ada" for n in (1, 2, 3)]
        assert web.http.get(place).json()["result"] == "sent to ada"
        assert web.http.get("/mails/nobody").status_code == 404
        assert web.http.get("/mails/nobody/events").status_code == 404


def test_a_server_stops_while_a_browser_follows_a_job(tmp_path: Path) -> None:
    impatient = ["uvicorn", "--timeout-graceful-shutdown", "1", "--port", "{port}"]
    with site(impatient, "fastapi_app", tmp_path) as web:  # without a worker the job never starts
        place = web.http.post("/reports", json={"title": "x", "pages": 1}).headers["location"]
        with web.http.stream("GET", f"{place}/events") as response:
            assert next(response.iter_lines()) == "event: update"
            web.server.send_signal(signal.SIGTERM)
            assert web.server.wait(STOP_S) in STOPPED
