"""The processes of a job end with it and with its worker, and their processor time is counted."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from jobq import JobFailed, Permissions, Worker
from jobq.executors.sandbox import limits
from jobq.executors.sandbox.kernel import missing_features, this_kernel
from tests.executors.sandbox import processes
from tests.executors.sandbox.channel import ROOT
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("enforced", "counted")


@pytest.fixture(scope="module")
def counted() -> None:
    """Skip the tests where a job may start no processes."""
    if lacking := missing_features(Permissions(processes=1), this_kernel()):
        pytest.skip(f"this machine cannot limit processes: {'; '.join(lacking)}")


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    """The store of the tasks for this test."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    processes.queue._context.connection.move(url)
    async with processes.queue:
        yield url
    await processes.queue._context.connection.move_back()


@pytest.mark.parametrize("stopped", [False, True], ids=["deaf", "stopped"])
async def test_no_process_of_a_job_outlives_a_worker_that_is_killed(
    url: str, stopped: bool
) -> None:
    job = await processes.start_and_stay.enqueue(stopped)
    app = "tests.executors.sandbox.processes:queue"
    code = "from jobq.cli.worker import main; main()"
    worker = subprocess.Popen(
        [sys.executable, "-c", code, app, "--url", url, "--pool", "1"], cwd=ROOT
    )
    try:
        pids = await until(lambda: _progress(job), "the processes of the job", seconds=120)
        assert len(pids) == 1 + 2 * len(processes.WAYS)
        assert all(map(_runs, pids))
    finally:
        worker.kill()
        worker.wait()
    await until(lambda: not any(map(_runs, pids)), "the processes to end with the worker")


async def test_processes_that_a_job_leaves_are_gone_before_the_next_job_ends(url: str) -> None:
    async with Worker(processes.queue, pool=1):
        child, left = await processes.start_and_end.options(call_timeout=120).call()
        assert await processes.pid.options(call_timeout=120).call() != child
        await until(lambda: not any(map(_runs, left)), "the processes that the job has left")
        first, second = [await processes.pid.options(call_timeout=60).call() for _ in range(2)]
        assert first == second, "a job that leaves nothing keeps its child"


@pytest.mark.parametrize("counting", ["control group", "sum"])
@pytest.mark.parametrize("where", processes.BURNERS)
async def test_processor_time_of_all_processes_counts(
    url: str, monkeypatch: pytest.MonkeyPatch, counting: str, where: str
) -> None:
    if counting == "sum":
        own = limits._own_cgroup
        monkeypatch.setattr(
            limits, "_own_cgroup", lambda name: None if name == "cpuacct" else own(name)
        )
    elif not _counts_time():
        pytest.skip("this user may make no control group that counts processor time")
    async with Worker(processes.queue, pool=1):
        burn = processes.burn.options(call_timeout=120)
        assert await burn.call(where, 0.3) == "within its limit"
        with pytest.raises(JobFailed, match="more than 1 s of processor time are not") as caught:
            await burn.call(where, 4.0)
    assert caught.value.failure.reason == "crashed"


async def test_a_job_that_ignores_the_kernels_warning_fails_for_the_same_reason(url: str) -> None:
    async with Worker(processes.queue, pool=1):
        with pytest.raises(JobFailed, match="more than 1 s of processor time are not allowed"):
            await processes.burn_deaf.options(call_timeout=120).call()


async def test_processor_time_of_a_commands_processes_counts(url: str) -> None:
    async with Worker(processes.queue, pool=1):
        with pytest.raises(JobFailed, match="more than 1 s of processor time are not allowed"):
            await processes.shell.options(call_timeout=120).call()


def _counts_time() -> bool:
    """Whether this user may make a control group that counts processor time."""
    groups = limits.make_cgroups(Permissions(processes=1, cpu=1))
    try:
        return any(map(limits._usage_file, groups))
    finally:
        for group in groups:
            limits.remove_cgroup(group)


async def _progress(job: Any) -> list[int] | None:
    return (await job.info()).progress or None


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
