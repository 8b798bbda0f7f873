"""The dashboard inside the example project, for its staff."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from scripts.ports import free_port
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "django"
USERS = """
from django.contrib.auth import get_user_model
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY
from orders.jobs import send_receipt
for name, staff in (("ada", True), ("eve", False)):
    user = get_user_model().objects.create_user(name, is_staff=staff, is_superuser=staff)
    session = SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.create()
    print(f"session {name} {session.session_key}")
send_receipt.sync.enqueue(1)
"""


def test_staff_of_a_django_project_see_its_dashboard(tmp_path: Path) -> None:
    dropped = ("JQ_", "DJANGO_", "JOBQ_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    environment = {**kept, "PYTHONPATH": str(ROOT / "src"), "EXAMPLE_FOLDER": str(tmp_path)}
    _manage(environment, "migrate", "--verbosity", "0")
    said = _manage(environment, "shell", "--command", USERS)
    sessions = dict(line.split()[1:] for line in said.splitlines() if line.startswith("session "))
    with _serving(environment) as address, httpx.Client(base_url=address) as browser:
        assert browser.get("/jobs/").status_code == 401
        assert browser.get("/admin/login/").status_code == 200, "the project's own pages"
        browser.cookies.set("sessionid", sessions["eve"])
        assert browser.get("/jobs/").status_code == 401
        browser.cookies.set("sessionid", sessions["ada"])
        assert 'href="/jobs/queue?tenant=default&amp;queue=emails"' in browser.get("/jobs/").text
        shown = browser.get("/jobs/api/v1/session").json()
        assert (shown["subject"], shown["scopes"]) == ("ada", ["admin"])


def _manage(environment: dict[str, str], *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "manage.py", *arguments],
        cwd=EXAMPLE,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def _serving(environment: dict[str, str]) -> Iterator[str]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "uvicorn", "mysite.asgi:application", "--port", str(port)],
        cwd=EXAMPLE,
        env=environment,
        stderr=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
    )
    address = f"http://127.0.0.1:{port}"

    def replies() -> bool:
        assert process.poll() is None
        try:
            return httpx.get(f"{address}/admin/login/").status_code == 200
        except httpx.TransportError:
            return False

    try:
        wait_until(replies, "the project to serve")
        yield address
    finally:
        process.kill()
        process.wait(10)
