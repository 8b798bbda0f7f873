"""Adjacent releases of jobq run side by side on one store: each works on the other's jobs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from jobq import ConfigError, Queue
from tests.adjacent.releases import THIS, next_release, previous_release
from tests.stores.valkey import servers
from tests.waiting import until, wait_until

APP = Path(__file__).with_name("app.py")
RESULTS = {
    "plain": 3,
    "delayed": 4,
    "urgent": 5,
    "retried": 6,
    "unique": 11,  # of the name `other`
    "keyed-0": "acme:0",
    "keyed-1": "acme:1",
    "child": 5,
    "parent": 15,
}


@pytest.fixture(scope="module", params=["next", "previous"])
def other(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of the release beside this one."""
    make = next_release if request.param == "next" else previous_release
    return make(tmp_path_factory.mktemp("release"))


@pytest.fixture(scope="module")
def breaking(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The source of a later release that changes the meaning of stored data."""
    return next_release(tmp_path_factory.mktemp("release"), changes_data=True)


@pytest.fixture(params=["sqlite", "valkey"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/jobs.db"
        return
    with servers.running(servers.valkey_or_skip(), tmp_path) as server:
        yield server.url


def run(source: Path, url: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The application on one release, to its end."""
    return subprocess.run(
        [sys.executable, str(APP), *arguments],
        env=environment(source, url),
        capture_output=True,
        text=True,
        timeout=100,
    )


def answer(source: Path, url: str, *arguments: str) -> Any:
    """What the application prints; None if it prints nothing."""
    done = run(source, url, *arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout else None


def environment(source: Path, url: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(source), "JQ_URL": url}


@contextmanager
def worker(source: Path, url: str) -> Iterator[None]:
    """A worker of one release. It must leave in peace."""
    command = [sys.executable, "-m", "jobq.cli.worker", "--app", "app:jobs", "--concurrency", "5"]
    with subprocess.Popen(command, cwd=APP.parent, env=environment(source, url)) as process:
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(60)
    assert code == 0


def version(source: Path) -> str:
    namespace: dict[str, str] = {}
    exec((source / "jobq/core/version.py").read_text(), namespace)
    return namespace["__version__"]


def test_the_other_release_works_on_the_jobs_of_this_one(other: Path, url: str) -> None:
    answer(THIS, url, "put", "other")
    assert answer(other, url, "work", "other") == RESULTS
    assert answer(THIS, url, "read", "other") == RESULTS


def test_this_release_works_on_the_jobs_of_the_other(other: Path, url: str) -> None:
    answer(other, url, "put", "other")
    assert answer(THIS, url, "work", "other") == RESULTS
    assert answer(other, url, "read", "other") == RESULTS


async def test_workers_of_two_releases_share_a_queue(other: Path, url: str) -> None:
    with worker(THIS, url), worker(other, url):
        async with Queue("jobs", url) as queue:

            async def both() -> bool:
                return len(await queue.workers()) == 2

            await until(both, "the workers of both releases")
        for producer in (THIS, other):
            ran = answer(producer, url, "share", "300")
            assert sum(ran.values()) == 300
            assert set(ran) == {version(THIS), version(other)}


def test_a_release_that_changes_data_keeps_this_one_out(breaking: Path, url: str) -> None:
    answer(breaking, url, "put", "other")
    refused = run(THIS, url, "put", "late")
    assert refused.returncode != 0
    assert "has layout 99, from jobq 9.9.0" in refused.stderr
    assert "upgrade jobq here to 9.9.0 or newer" in refused.stderr


async def test_an_open_producer_is_kept_out_by_a_release_that_changes_data(
    breaking: Path, url: str
) -> None:
    async with Queue("jobs", url) as queue:
        await queue.enqueue_many([queue.task_by_name("add").bind(1, 2)])
        answer(breaking, url, "put", "other")
        with pytest.raises(ConfigError, match=r"has layout 99, from jobq 9\.9\.0"):
            await queue.enqueue_many([queue.task_by_name("add").bind(1, 2)])


def test_a_store_is_not_migrated_under_the_workers_of_this_release(
    breaking: Path, url: str
) -> None:
    answer(THIS, url, "put", "other")
    with worker(THIS, url):
        wait_until(lambda: answer(THIS, url, "workers", "0") == 1, "the worker")
        refused = run(breaking, url, "put", "late")
        assert "has to be migrated to 99 for jobq 9.9.0, but 1 of its workers" in refused.stderr
    answer(breaking, url, "put", "late")
