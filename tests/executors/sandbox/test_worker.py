"""Permissions through a real Worker: what a handler tries is refused, and its job says why."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from jobq import ConfigError, JobFailed, Permissions, Queue, Worker
from tests.executors.sandbox import app
from tests.executors.sandbox import worker as stand_in
from tests.executors.sandbox.attempts import SECRET, VARIABLE
from tests.executors.sandbox.test_escapes import ESCAPES
from tests.waiting import until

pytestmark = pytest.mark.usefixtures("enforced")

# Attempts that end otherwise than as PermissionDenied: the error or the reason.
_ENDS = {
    "set_up_io_uring": "OSError",  # ENOSYS, which libraries expect
    "call_in_32_bits": "crashed",
}
# Attempts about descriptors and permissions that differ in a child that was started by exec.
_ELSEWHERE = {"read_inherited_descriptor", "thread_bomb"}


@pytest.fixture
def target(monkeypatch: pytest.MonkeyPatch) -> Iterator[stand_in.Worker]:
    """What this process has and its children must not reach."""
    monkeypatch.setenv(VARIABLE, SECRET)
    before = signal.getsignal(signal.SIGUSR1)
    worker = stand_in.Worker(setuid="")
    yield worker
    worker.close()
    signal.signal(signal.SIGUSR1, before)


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    """The store of the app's queues for this test."""
    url = f"sqlite:///{tmp_path}/jobs.db"
    for queue in app.QUEUES:
        queue._context.connection.move(url)
    async with app.plain, app.named, app.various, app.free:
        yield url
    for queue in app.QUEUES:
        await queue._context.connection.move_back()


async def outcome(task: object, name: str, worker: stand_in.Worker) -> str:
    """Let a handler try. Returns the type of its error, the reason of its end, or what it got."""
    before = worker.signals
    job = await task.enqueue(name, asdict(worker.target))  # type: ignore[attr-defined]
    try:
        got = await job.result(timeout=60)
    except JobFailed as failed:
        failure = failed.failure
        return failure.reason if failure.reason == "crashed" else failure.type
    if got == "may have signalled" and worker.signals == before:
        return "jobq.PermissionDenied"
    return f"escaped: {got}"


async def test_every_escape_from_a_handler_is_refused(url: str, target: stand_in.Worker) -> None:
    plain = {e.attempt for e in ESCAPES if e.permissions(target.target) == {}} - _ELSEWHERE
    with_ports = {e.attempt for e in ESCAPES if e.permissions(target.target) == {"network": [1]}}
    tried = [
        *((app.attempt, name) for name in sorted(plain)),
        *((app.attempt_with_ports, name) for name in sorted(with_ports)),
        *((app.attempt_with_network, name) for name in ("connect_unix", "connect_abstract")),
        *((app.attempt_with_limits, name) for name in ("allocate", "open_many_files")),
        (app.attempt_with_processes, "fork_bomb"),
    ]
    async with Worker(app.plain, app.various, pool=1):
        ends = {(task.name, name): await outcome(task, name, target) for task, name in tried}
    assert len(ends) > 55
    expected = {(task.name, name): _ENDS.get(name, "jobq.PermissionDenied") for task, name in tried}
    assert {what: end for what, end in ends.items() if end != expected[what]} == {}


async def test_a_violation_names_the_path_and_the_task(url: str, target: stand_in.Worker) -> None:
    async with Worker(app.plain, pool=1):
        with pytest.raises(JobFailed) as caught:
            await app.attempt.call("read_absolute", asdict(target.target))
    secret = target.target.secret
    assert f"{secret} is not readable for task attempt" in str(caught.value)


async def test_the_next_job_finds_nothing_of_the_one_before(url: str) -> None:
    async with Worker(app.plain, pool=1):
        descriptor, path = await app.leave.call()
        assert await app.look.call(descriptor, path) == ("", False)


async def test_one_job_per_child_isolates_fully(url: str) -> None:
    async with Worker(app.plain, pool=1, pool_max_jobs=1):
        first, second = [(await app.leave.call())[1] for _ in range(2)]
        assert os.path.dirname(first) != os.path.dirname(second)


async def test_a_handler_has_only_the_variables_that_are_named(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NAMED", "yes")
    monkeypatch.setenv("SECRET", "no")
    async with Worker(app.named, pool=1):
        found = await app.variables.call()
        assert (found.get("NAMED"), "SECRET" in found) == ("yes", False)
        assert "SECRET" not in await app.first_variables.call()


async def test_a_handler_does_not_learn_the_password_of_its_store() -> None:
    app.plain._context.connection.move("memory://app:secret@place")
    async with app.plain, Worker(app.plain, pool=1):
        assert set(await app.known_urls.call()) == {"memory://app:***@place"}
    await app.plain._context.connection.move_back()


async def test_a_well_behaved_handler_has_all_it_needs(url: str) -> None:
    async with Worker(app.plain, pool=1):
        child = await app.use_everything.call()
        assert await app.plain.job(child).result(timeout=30) == "Europe/Berlin"


@pytest.mark.parametrize(
    ("queue", "task"),
    [(app.various, app.leave_process), (app.free, app.leave_process_freely)],
    ids=["with permissions", "without"],
)
async def test_processes_that_a_job_leaves_end_with_its_child(
    url: str, queue: Queue, task: Any
) -> None:
    async with Worker(queue, pool=1, pool_max_jobs=1):
        left = await task.call()
        await until(lambda: not _runs(left), "the process to be killed")


async def test_workspaces_are_removed_with_their_children(url: str) -> None:
    async with Worker(app.named, pool=1):
        folder = (await app.variables.call())["TMPDIR"]
        assert os.path.isdir(folder)
    assert not os.path.exists(folder)


async def test_a_worker_refuses_what_it_cannot_enforce_and_names_it(url: str) -> None:
    queue = Queue("strict", url)

    @queue.task(executor="process", permissions=Permissions(read=["/nowhere"]))
    def render() -> None: ...

    with pytest.raises(ConfigError, match=r"task render of queue strict: .*there is no /nowhere"):
        async with Worker(queue):
            pass
    await queue.aclose()


@pytest.mark.parametrize("enforce", ["all", "best-effort"])
async def test_a_worker_refuses_a_path_that_another_task_could_replace(
    url: str, tmp_path: Path, enforce: Any
) -> None:
    queue = Queue("strict", url)
    (tmp_path / "w" / "in").mkdir(parents=True)

    @queue.task(executor="process", permissions=Permissions(write=[f"{tmp_path}/w"]))
    def clean() -> None: ...

    named = Permissions(read=[f"{tmp_path}/w/in"], enforce=enforce)

    @queue.task(executor="process", permissions=named)
    def render() -> None: ...

    said = rf"task render of queue strict: read= names {tmp_path}/w/in, .* write= of task clean of"
    with pytest.raises(ConfigError, match=said):
        async with Worker(queue):
            pass
    await queue.aclose()


async def test_a_worker_refuses_to_give_away_the_folder_of_its_store(
    url: str, tmp_path: Path
) -> None:
    queue = Queue("strict", url)

    @queue.task(executor="process", permissions=Permissions(read=[str(tmp_path)]))
    def render() -> None: ...

    with pytest.raises(ConfigError, match=rf"contains {tmp_path}/jobs.db \(a store of this worker"):
        async with Worker(queue):
            pass
    await queue.aclose()


_BESIDE = """
import asyncio, pathlib
from jobq import JobFailed, Permissions, Queue, Worker

queue = Queue("q", "sqlite:///jobq.db")

@queue.task(executor="process", retry=0, permissions=Permissions())
def read(name):
    import helper
    return pathlib.Path(name).read_text(errors="replace")[:6]

async def main():
    async with queue, Worker(queue, pool=1):
        for name in ("jobq.db", "jobq.db-wal", "jobq.db-lock", ".env", "helper.py"):
            try:
                print(name, await read.options(call_timeout=60).call(name))
            except JobFailed as failed:
                print(name, failed.failure.type)
"""


async def test_a_task_that_names_nothing_cannot_read_the_store_beside_its_code(
    tmp_path: Path,
) -> None:
    for name, text in (("app.py", _BESIDE), ("helper.py", "x = 1"), (".env", "KEY=1")):
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-c", "import asyncio, app; asyncio.run(app.main())"]
    done = await asyncio.to_thread(
        subprocess.run, command, cwd=tmp_path, capture_output=True, text=True, timeout=200
    )
    assert dict(line.split(" ", 1) for line in done.stdout.splitlines()) == {
        **dict.fromkeys(
            ("jobq.db", "jobq.db-wal", "jobq.db-lock", ".env"), "jobq.PermissionDenied"
        ),
        "helper.py": "x = 1",
    }, done.stderr


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"
    except FileNotFoundError:
        return False
