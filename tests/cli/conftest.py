"""What the tests of the command lines share: a store in a file, jq-ctl in this process, jq-worker in processes of its own."""

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
    """What the developer has set is not what is tested."""
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
    """Run everything that can run now, in this process."""
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
    """Start jq-worker processes on the shop; those left over are killed."""
    started: list[subprocess.Popen[str]] = []

    def start(
        *args: str, app: str | None = "shopapp:shop", **environment: str
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "jobq.cli.worker", *(["--app", app] if app else []), *args],
            cwd=APPS,
            env={**os.environ, "JQ_URL": url, **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def until() -> Callable[[Callable[[], Any], str], Any]:
    """Wait for something that another process does; it has no other way to tell."""

    return waiting.wait_until
