"""The example project: its own tests, and a server and a worker that serve one order."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from scripts.ports import free_port
from tests.stores.postgres.servers import FAST, postgres_or_skip, running
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "django"
MANAGE = [sys.executable, "-W", "error", "manage.py"]


@pytest.fixture(params=["sqlite", "postgresql"])
def environment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, str]]:
    """The variables of the project, with its database in a file or in a server of the test."""
    dropped = ("JQ_", "DJANGO_", "JOBQ_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    given = {**kept, "PYTHONPATH": str(ROOT / "src"), "EXAMPLE_FOLDER": str(tmp_path)}
    if request.param == "sqlite":
        yield given
        return
    postgres_or_skip()
    with running(FAST) as server:
        yield {**given, "DATABASE_URL": server.url}


def manage(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*MANAGE, *arguments],
        cwd=EXAMPLE,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


@contextmanager
def started(environment: dict[str, str], *arguments: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [*MANAGE, *arguments], cwd=EXAMPLE, env=environment, stdout=subprocess.PIPE, text=True
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=10)


def test_the_tests_of_the_example_pass(environment: dict[str, str]) -> None:
    assert "Ran 2 tests" in manage(environment, "test").stderr
    if "DATABASE_URL" not in environment:
        manage(environment, "makemigrations", "--check", "--dry-run")


def test_a_server_takes_an_order_and_a_worker_sends_its_receipt(
    environment: dict[str, str],
) -> None:
    manage(environment, "migrate")
    port = free_port()
    site = f"http://127.0.0.1:{port}"
    with (
        started(environment, "runserver", "--noreload", str(port)),
        started(environment, "jobq_worker") as worker,
    ):
        wait_until(lambda: _answers(f"{site}/receipts/nobody/"), "the server to start")
        body = urlencode({"email": "ada@example.org"}).encode()
        with urlopen(f"{site}/orders/", body, timeout=20) as response:
            placed = json.load(response)

        def state() -> dict[str, str]:
            with urlopen(f"{site}/receipts/{placed['receipt']}/", timeout=20) as response:
                found: dict[str, str] = json.load(response)
                return found

        wait_until(lambda: state()["state"] == "completed", "the receipt to be sent")
        assert state()["sent_to"] == "ada@example.org"
        listed = manage(environment, "jobq", "job", "list", "-q", "emails", "-o", "json")
        assert [job["id"] for job in json.loads(listed.stdout)] == [placed["receipt"]]
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(30) == 0


def _answers(url: str) -> bool:
    try:
        urlopen(url, timeout=5)
    except URLError as error:
        return getattr(error, "code", None) == 404
    return True
