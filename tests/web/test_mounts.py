"""The dashboard inside applications: FastAPI and Starlette here, Django in tests/with_django."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from jobq import Queue

EXAMPLES = Path(__file__).parents[2] / "examples/web"


def _example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
async def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    url = f"sqlite:///{tmp_path}/jobs.db"
    monkeypatch.setenv("JQ_URL", url)
    queue = Queue("mail", url)
    async with queue:
        await queue.task_by_name("send").enqueue(to="ada")
    return url


@asynccontextmanager
async def _browser(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A browser on an application that has started."""
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app=app), base_url="http://jobs.example"
        ) as browser,
    ):
        yield browser


async def _pause(browser: httpx.AsyncClient) -> httpx.Response:
    token = (await browser.get("/jobs/api/v1/session")).json()["csrf_token"]
    return await browser.post(
        "/jobs/api/v1/queue/pause",
        json={"tenant": "default", "queue": "mail"},
        headers={"X-CSRF-Token": token},
    )


async def test_users_of_a_fastapi_application_see_its_dashboard(url: str) -> None:
    app = _example("dashboard_fastapi").app
    async with _browser(app) as browser:
        assert (await browser.get("/jobs/")).status_code == 401
        browser.cookies.set("session", "91b2")
        page = await browser.get("/jobs/")
        assert page.status_code == 200
        assert 'href="/jobs/static/site.css"' in page.text
        assert 'href="/jobs/queue?tenant=default&amp;queue=mail"' in page.text
        assert (await browser.get("/jobs/static/site.css")).status_code == 200
        assert (await browser.get("/jobs")).headers["location"].endswith("/jobs/")
        assert (await _pause(browser)).status_code == 403
        browser.cookies.set("session", "7f3c")
        assert (await _pause(browser)).status_code == 200


async def test_people_sign_in_to_a_dashboard_inside_a_starlette_application(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = tmp_path / "tokens.txt"
    tokens.write_text("a-token-that-is-long-enough ada admin\n")
    monkeypatch.setenv("TOKENS_FILE", str(tokens))
    app = _example("dashboard_starlette").app
    async with _browser(app) as browser:
        assert (await browser.get("/jobs/")).headers["location"] == "/jobs/sign-in?next=%2Fjobs%2F"
        done = await browser.post(
            "/jobs/sign-in", data={"token": "a-token-that-is-long-enough", "next": "/jobs/workers"}
        )
        assert done.headers["location"] == "/jobs/workers"
        assert "path=/jobs" in done.headers["set-cookie"].lower()
        assert (await browser.get("/jobs/workers")).status_code == 200
        assert (await _pause(browser)).status_code == 200


def test_jobq_web_needs_no_driver_of_the_server() -> None:
    """The rules of who may do what are the server's, but jobq[web] has neither gRPC nor PyJWT."""
    code = "import sys, jobq.web; print(*{'grpc', 'jwt', 'click', 'google'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, "")
