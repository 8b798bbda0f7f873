"""The example workers in Go and Node.js, with a real server. Skipped without their toolchains."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from jobq.core.records.commands import Cancel
from jobq.core.records.jobs import JobKey, JobSpec, RetryData
from jobq.server.pushed import Worker
from jobq.testing import FakeWorker
from tests.server.worker_kit import QUEUE, Place, serving
from tests.waiting import until

ROOT = Path(__file__).parents[2]
DOWNLOAD_S = 120
BUILD_S = 300
"""Seconds. A build on two busy cores takes a minute with an empty cache."""


def prepared(command: list[str], folder: Path, environment: dict[str, str], what: str) -> None:
    """Download what the worker needs, or skip the test."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_S,
        )
    except subprocess.TimeoutExpired:
        pytest.skip(f"{what} could not be downloaded within {DOWNLOAD_S} s")
    if done.returncode:
        pytest.skip(f"{what} could not be downloaded: {done.stderr.strip()[-200:]}")


def copied(name: str, tmp_path: Path) -> Path:
    """A copy of an example and of the protos beside it."""
    shutil.copytree(ROOT / "proto", tmp_path / "proto")
    skipped = shutil.ignore_patterns("node_modules", "build", "proto")
    shutil.copytree(ROOT / "examples" / name, tmp_path / "examples" / name, ignore=skipped)
    return tmp_path / "examples" / name


@pytest.fixture(scope="module")
def go_worker(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of the worker in Go."""
    if shutil.which("go") is None:
        pytest.skip("there is no Go toolchain")
    folder = copied("go_worker", tmp_path_factory.mktemp("go"))
    environment = {
        **os.environ,
        "GOBIN": str(folder / "build" / "bin"),
        "GOFLAGS": "-mod=mod",
        "PYTHON": sys.executable,
    }
    for fetch in (["go", "mod", "download"], ["sh", "generate.sh", "tools"]):
        prepared(fetch, folder, environment, "modules of the worker in Go")
    for step in (["sh", "generate.sh"], ["go", "build", "-o", "build/worker", "."]):
        done = subprocess.run(
            step, cwd=folder, env=environment, capture_output=True, text=True, timeout=BUILD_S
        )
        assert done.returncode == 0, done.stderr
    return [str(folder / "build" / "worker")]


@pytest.fixture(scope="module")
def node_worker(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of the worker in Node.js."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        pytest.skip("there is no Node.js with npm")
    folder = copied("node_worker", tmp_path_factory.mktemp("node"))
    install = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"]
    prepared(install, folder, dict(os.environ), "packages of the worker in Node.js")
    return ["node", str(folder / "worker.js")]


@pytest.fixture(params=["go", "node"])
def command(request: pytest.FixtureRequest) -> list[str]:
    """The command of a worker."""
    worker: list[str] = request.getfixturevalue(f"{request.param}_worker")
    return worker


@asynccontextmanager
async def running(
    command: list[str], place: Place, *options: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A worker in a process of its own. It is killed at the end, unless it has stopped."""
    process = await asyncio.create_subprocess_exec(
        *command,
        *("--server-addr", place.address, "--queues", "mail", "--worker-id", "w1", *options),
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def put(place: Place, id: str, name: str, payload: bytes, **options: object) -> None:
    spec = JobSpec(queue=QUEUE, id=id, name=name, payload=payload, **options)  # type: ignore[arg-type]
    await place.store.put([spec])


async def is_in(place: Place, id: str, state: str) -> bool:
    return (await place.get(id)).state == state


def runs(place: Place, id: str) -> bool:
    """Whether the job was pushed to the worker, and the worker has confirmed it."""
    worker = Worker("default", "w1")
    (service,) = place.host.services
    stream = service._streams.get(worker)  # type: ignore[attr-defined]
    if stream is None or (QUEUE, id) not in stream._cancels._running:
        return False
    return not service._pushed.count(worker)  # type: ignore[attr-defined]


async def test_a_worker_in_another_language_runs_jobs(command: list[str]) -> None:
    async with serving(lease_ms=3_000, upkeep=True) as place, running(command, place) as process:
        once = RetryData(max_retries=0)
        await put(place, "good", "greet", b'[["Ada"],{}]')
        await put(place, "bad", "greet", b"[[],{}]", retry=once)
        await put(place, "unknown", "other", b"[[],{}]")
        await put(place, "late", "nap", b"[[60],{}]", retry=once, timeout_ms=200)
        await put(place, "stopped", "nap", b"[[60],{}]")
        await put(place, "long", "nap", b"[[4],{}]")  # longer than its lease
        await until(lambda: is_in(place, "good", "completed"), "a completed job")
        assert b"hello Ada from" in ((await place.get("good")).result or b"")
        await until(lambda: is_in(place, "bad", "failed"), "a failed job")
        failure = (await place.get("bad")).failure
        assert failure is not None
        assert "greet takes one string" in failure.message
        await until(lambda: is_in(place, "late", "failed"), "a job that takes too long")
        failure = (await place.get("late")).failure
        assert failure is not None
        assert failure.reason == "timeout"
        assert (await place.get("unknown")).failures == 0
        await until(lambda: is_in(place, "stopped", "active"), "a running job")
        await place.store.alter([Cancel(job=JobKey(QUEUE, "stopped"))])
        await until(lambda: is_in(place, "stopped", "cancelled"), "a cancelled job")
        await until(lambda: is_in(place, "long", "completed"), "a long job")
        assert await place.kinds("long") == ["accepted", "started", "completed"]
        assert (await place.store.workers())[0].name == "w1"

        # A worker that is asked to stop finishes its jobs.
        await put(place, "last", "nap", b"[[1],{}]")
        await until(lambda: runs(place, "last"), "the last job")
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 20) == 0
        assert await place.states("last") == ["completed"]
        assert await place.store.workers() == []


async def test_jobs_that_outlast_the_grace_time_are_released(command: list[str]) -> None:
    grace = "1s" if "node" not in command[0] else "1"
    async with serving() as place, running(command, place, "--grace", grace) as process:
        await put(place, "a", "nap", b"[[60],{}]")
        await until(lambda: runs(place, "a"), "a running job")
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 20) == 0
        record = await place.get("a")
        assert (record.state, record.failures, record.stalls) == ("waiting", 0, 0)


async def test_an_operator_stops_a_worker_in_another_language(command: list[str]) -> None:
    async with serving(lease_ms=3_000) as place, running(command, place) as process:
        await until(place.store.workers, "the worker")
        assert await place.store.ask_worker("w1", "shutdown")
        assert await asyncio.wait_for(process.wait(), 20) == 0


async def test_the_job_of_a_worker_that_was_killed_runs_elsewhere(command: list[str]) -> None:
    async with serving(lease_ms=3_000, upkeep=True) as place:
        async with running(command, place) as process:
            await put(place, "a", "nap", b"[[60],{}]")
            await until(lambda: runs(place, "a"), "a running job")
            process.kill()
            await process.wait()
        async with FakeWorker(place.address, ["mail"]) as worker:
            job = await worker.job(timeout=15)
            assert (job.id, job.attempt, job.stalls) == ("a", 2, 1)
