"""Fixtures of the command-line tests: a store in a file, jq-ctl, and jq-worker processes."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jobq import Queue, State, Worker
from tests import waiting
from tests.cli.kit import Ctl

APPS = Path(__file__).parent / "apps"
PATIENCE = 30.0


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the developer's own settings from the environment."""
    for name in [name for name in os.environ if name.startswith("JQ_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/jobs.db"


@pytest.fixture
def ctl(url: str) -> Ctl:
    return Ctl(url)


@pytest.fixture
def work(url: str) -> Callable[[], None]:
    """Run all jobs that are due, in this process."""
    spec = importlib.util.spec_from_file_location("shopapp_here", APPS / "shopapp.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    async def idle(queue: Queue) -> bool:
        counts = await queue.counts()
        return not counts[State.WAITING] and not counts[State.ACTIVE]

    async def run() -> None:
        queue = module.make_shop(url)
        async with queue, Worker(queue, name="here"):
            async with asyncio.timeout(PATIENCE):
                async for info in queue.find(state="waiting"):
                    await queue.job(info.id).wait() if info.name not in (
                        "flaky",
                        "approval",
                    ) else None
                await waiting.until(lambda: idle(queue), "nothing to wait or run")

    return lambda: asyncio.run(run())


@pytest.fixture
def start_worker(url: str) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start jq-worker processes for the shop. Kills those that are left at the end."""
    started: list[subprocess.Popen[str]] = []

    def start(
        *args: str,
        app: str | None = "shopapp:shop",
        folder: Path = APPS,
        own_group: bool = False,
        stdin: int | None = None,
        **environment: str,
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "jobq.cli.worker", *(["--app", app] if app else []), *args],
            cwd=folder,
            env={**os.environ, "PWD": str(folder), "JQ_URL": url, **environment},
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            process_group=0 if own_group else None,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def until() -> Callable[[Callable[[], Any], str], Any]:
    """Poll for something that another process does, because it cannot signal it."""

    return waiting.wait_until
