"""Programs as tasks: command lines, input and output, exit codes, stopping, the environment."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from jobq import ConfigError, InvalidJob, Job, JobFailed, Queue, State, Worker
from jobq.api.command import ANY_COMMAND, allow_commands
from jobq.testing import queue as make_queue
from tests.api.deferrals import deferral
from tests.executors.apps import work
from tests.executors.test_process import _gone
from tests.waiting import until


@pytest.fixture
async def worker(queue: Queue) -> AsyncIterator[Worker]:
    """A worker that runs programs."""
    async with Worker(work.commands) as running:
        yield running


async def test_a_program_gets_its_arguments_whole_and_as_json(worker: Worker) -> None:
    name = "two words; $(reboot) 'quoted'"
    line, given = await work.echo.call(size=3, name=name, extra={"a": [1]})
    assert line == ["--size", "3", name]
    assert given == {"size": 3, "name": name, "extra": {"a": [1]}}


async def test_arguments_are_checked_before_anything_is_stored(worker: Worker) -> None:
    with pytest.raises(InvalidJob):
        await work.echo.enqueue(size=3)


async def test_a_value_that_is_no_text_cannot_be_part_of_a_command_line(worker: Worker) -> None:
    job = await work.echo.enqueue(size=[1], name="x")
    assert "is neither text nor a number" in await deferral(job)


async def test_the_result_may_come_on_descriptor_3_and_stdout_is_the_log_then(
    worker: Worker,
) -> None:
    job = await work.shell.enqueue(script="echo for people; echo [1] >&3; echo oops >&2")
    assert await job.result(timeout=20) == [1]
    assert await job.logs() == ["oops", "for people"]


async def test_a_program_that_writes_nothing_returns_none(worker: Worker) -> None:
    assert await work.shell.call(script="true") is None


@pytest.mark.parametrize(
    "script",
    [
        "echo not json",
        r"printf '\"\377\"'",
        r"printf '\"\355\240\200\"'",
        "head -c 100000 /dev/zero | tr '\\0' '['",
    ],
    ids=["words", "bad UTF-8", "a surrogate", "arrays in arrays"],
)
async def test_output_that_is_no_json_is_a_failure(worker: Worker, script: str) -> None:
    with pytest.raises(JobFailed, match="is not JSON") as failed:
        await work.shell.call(script=script)
    assert failed.value.failure.type.endswith("CommandFailed")


@pytest.mark.parametrize(
    ("code", "state", "reason", "failures"),
    [
        (1, State.FAILED, "error", 3),
        (65, State.FAILED, "rejected", 1),
        (75, State.FAILED, "error", 3),
    ],
)
async def test_exit_codes_decide(
    worker: Worker, code: int, state: State, reason: str, failures: int
) -> None:
    job = await work.patient.enqueue(script=f"echo the reason >&2; exit {code}")
    info = await job.wait(timeout=20)
    assert info.failure is not None
    assert (info.state, info.failure.reason, info.failures) == (state, reason, failures)
    assert info.failure.message == f"exit code {code}: the reason"


async def test_a_program_killed_by_a_signal_has_crashed(worker: Worker) -> None:
    with pytest.raises(JobFailed, match="killed by SIGSEGV") as caught:
        await work.shell.call(script="kill -SEGV $$")
    assert caught.value.failure.reason == "crashed"


async def _begun(job: Job[Any], path: Path) -> int:
    text = await until(lambda: path.exists() and path.read_text().strip(), "the program")
    assert await job.state() is State.ACTIVE
    return int(text)


@pytest.mark.parametrize("trap", ["", "trap '' TERM;"], ids=["polite", "stubborn"])
async def test_a_cancel_ends_the_whole_process_group(
    worker: Worker, folder: Path, trap: str
) -> None:
    path = folder / "pid"
    job = await work.shell.enqueue(script=f"{trap} sleep 60 & echo $! > {path}; wait; wait")
    pid = await _begun(job, path)
    await job.cancel()
    assert (await job.wait(timeout=20)).state is State.CANCELLED
    await until(lambda: _gone(pid), "the end of the group")


async def test_a_timeout_asks_and_then_kills(worker: Worker) -> None:
    job = await work.shell.options(timeout=0.3).enqueue(
        script="trap '' TERM; while true; do sleep 0.05; done"
    )
    info = await job.wait(timeout=20)
    assert info.failure is not None
    assert info.failure.reason == "timeout"
    assert info.failure.message.endswith("and was killed")


async def test_a_stopping_worker_ends_its_programs(queue: Queue, folder: Path) -> None:
    path = folder / "pid"
    async with Worker(work.commands) as running:
        job = await work.shell.enqueue(
            script=f"trap '' TERM; echo $$ > {path}; while :; do :; done"
        )
        pid = await _begun(job, path)
        stopped = await running.stop(drain=0)
    assert [ref.id for ref in stopped.released] == [job.id]
    await until(lambda: _gone(pid), "the end of the program")


async def test_the_environment_has_only_what_is_allowed(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_TEST", "yes")
    monkeypatch.setenv("ANOTHER_SECRET", "no")
    assert await work.told.call() == "yes,,told"
    assert await work.limited_told.options(call_timeout=20).call() == "yes,,limited_told"
    shown = await work.shell.call(
        script="env | cut -d= -f1 | sort | tr '\\n' ' ' | sed 's/.*/\"&\"/'"
    )
    names = set(shown.split())
    assert "ANOTHER_SECRET" not in names
    assert "SECRET_OF_TEST" not in names
    assert {"PATH", "JOBQ_JOB", "JOBQ_TASK", "JOBQ_QUEUE", "JOBQ_ATTEMPT"} <= names


async def test_a_program_with_permissions_can_do_nothing_else(worker: Worker) -> None:
    job = await work.limited.enqueue(path="/etc/passwd")
    info = await job.wait(timeout=30)
    assert info.failure is not None
    assert "Permission denied" in info.failure.message


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ("echo hello", "is not a list of arguments"),
        ([], "the first argument names the program"),
        (["{program}"], "the first argument names the program"),
        (["thumb", "--size={size}"], "a placeholder inside an argument"),
    ],
)
def test_a_wrong_command_line_is_refused(argv: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        make_queue().command("wrong", argv)


async def test_a_program_that_does_not_exist_is_refused_before_the_worker_starts() -> None:
    async with make_queue() as queue:
        queue.command("missing", ["/no/such/program"])
        with pytest.raises(ConfigError, match="there is no program '/no/such/program'"):
            await Worker(queue).__aenter__()


async def test_a_job_brings_its_own_command_line_only_for_allowed_programs() -> None:
    async with make_queue() as queue:
        allow_commands(queue._context, ["cat"])
        task = queue.task_by_name(ANY_COMMAND, retry=0)
        async with Worker(queue):
            assert await task.call(argv=["cat"], stdin={"a": 1}) == {"a": 1}
            assert await task.call(["cat"], {"a": 1}) == {"a": 1}
            assert await task.call(["cat"]) is None
            strange = await deferral(await task.enqueue(argv=["cat"], input={"a": 1}))
            assert "the arguments argv and stdin, and no others" in strange
            with pytest.raises(JobFailed, match="does not allow the program 'ls'"):
                await task.call(argv=["ls"])
