"""Jobs that a worker cannot run because of their arguments, and results that cannot be stored.

Every executor decides by the same rules: a family of tests has each of them meet each misfit.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from jobq import (
    Codec,
    Job,
    JobFailed,
    Queue,
    Retry,
    State,
    UnfitArguments,
    WaitTimeout,
    Worker,
    testing,
)
from jobq.core.records.jobs import JobSpec
from jobq.core.rules.deferral import GIVE_UP_MS
from jobq.core.values import codec as codecs
from tests.api.deferrals import deferral
from tests.executors.apps import unfit

EXECUTORS = ("inline", "thread", "process", "batch", "command")
"""Each has a task in apps/unfit.py, whose parameters are (n: int, when: datetime = …)."""

MISFITS: dict[str, tuple[bytes, str]] = {
    "missing": (b"[[],{}]", "n"),
    "unknown": (b'[[1],{"m":2}]', "m"),
    "too many": (b'[[1,"2026-03-02T12:00:00Z",3,4],{}]', ""),
    "wrong kind": (b"[[[1]],{}]", ""),
    "wrong type": (b'[[1],{"when":"yesterday"}]', "when"),
}
UNDECODABLE: dict[str, bytes] = {
    "empty": b"",
    "no JSON": b"{",
    "no call": b'{"n":1}',
    "no text": b"\xff\xfe",
}
BATCH = {
    "wrong type": b'[[{"n":1,"when":"yesterday"}],{}]',
    "wrong kind": b"[[[1]],{}]",
}
COMMAND = {  # a command takes further arguments by name, and has no types
    "too many": b"[[1,2],{}]",
}


@pytest.fixture
async def app(url: str, kind: str) -> AsyncIterator[testing.Sandbox]:
    """The queue of apps/unfit.py in the test's store, under a clock that the test moves."""
    if kind == "grpc":
        pytest.skip("a jq-server has a clock of its own")
    async with testing.Sandbox((unfit.queue,), testing.FakeClock(), url) as jobs, unfit.queue:
        yield jobs


async def put(name: str, payload: bytes, *, codec: str = "json", id: str = "x") -> Job[Any]:
    """A job as another version of the producer stores it, with retries."""
    qname = unfit.queue._context.qname
    spec = JobSpec(queue=qname, id=id, name=name, payload=payload, codec=codec)
    await (await unfit.queue._context.store()).put([spec])
    return unfit.queue.job(id)


def payload_of(executor: str, misfit: str) -> bytes:
    special = {"batch": BATCH, "command": COMMAND}.get(executor, {})
    return special.get(misfit, MISFITS[misfit][0])


FAMILY = [
    (executor, misfit)
    for executor in EXECUTORS
    for misfit in MISFITS
    if (executor, misfit) not in {("command", "unknown"), ("command", "wrong type")}
]


@pytest.mark.parametrize(("executor", "misfit"), FAMILY)
async def test_arguments_that_do_not_fit_are_deferred_for_five_minutes(
    app: testing.Sandbox, executor: str, misfit: str
) -> None:
    job = await put(executor, payload_of(executor, misfit))
    begun = app.clock()
    assert await app.drain() == 1
    info = await job.info()
    assert (info.state, info.attempt, info.failures) == (State.DELAYED, 1, 0)
    assert (info.started_at, info.failure) == (None, None)
    assert info.deferred is not None
    assert "its arguments do not fit" in info.deferred
    assert MISFITS[misfit][1] in info.deferred
    await app.drain(delayed=True)
    info = await job.info()
    assert (info.state, info.failures) == (State.FAILED, 1)
    assert info.failure is not None
    assert (info.failure.reason, info.failure.type) == ("unfit", "jobq.UnfitArguments")
    assert MISFITS[misfit][1] in info.failure.message
    assert not info.failure.exhausted
    assert info.deferred is None
    waited_ms = info.failure.at_ms - begun
    assert GIVE_UP_MS["unfit"] <= waited_ms < GIVE_UP_MS["unfit"] + 60_000
    assert unfit.calls == []


@pytest.mark.parametrize("bytes_", UNDECODABLE)
@pytest.mark.parametrize("executor", EXECUTORS)
async def test_bytes_that_cannot_be_decoded_fail_at_once(
    app: testing.Sandbox, executor: str, bytes_: str
) -> None:
    job = await put(executor, UNDECODABLE[bytes_])
    assert await app.drain() == 1
    info = await job.info()
    assert (info.state, info.attempt) == (State.FAILED, 1)
    assert info.failure is not None
    assert (info.failure.reason, info.failure.type) == ("error", "jobq.UndecodableArguments")


class Backwards(Codec):
    """A codec that some workers have."""

    name = "backwards"

    def encode(self, value: Any) -> bytes:
        return msgspec.json.encode(value)[::-1]

    def decode(self, data: bytes, annotation: Any = Any) -> Any:
        return msgspec.json.decode(data[::-1], type=annotation)


@pytest.mark.parametrize("executor", [each for each in EXECUTORS if each != "process"])
async def test_a_codec_that_the_worker_lacks_is_waited_for(
    app: testing.Sandbox, executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codecs, "_known", dict(codecs._known))
    item = {"n": 2, "when": "2026-03-02T12:00:00Z"} if executor == "batch" else 2
    job = await put(executor, Backwards().encode([[item], {}]), codec="backwards")
    await app.drain()
    assert "codec='backwards' is not known in this process" in ((await job.info()).deferred or "")
    codecs.get_codec(Backwards())  # the next deploy
    await app.drain(delayed=True)
    assert (await job.info()).state is State.COMPLETED


@pytest.mark.parametrize("executor", EXECUTORS)
async def test_a_deploy_may_turn_one_reason_into_the_other(
    app: testing.Sandbox, executor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half an hour unknown, then unfit, with a rollback to unknown in between: five minutes after
    a worker first found it unfit, the next one that does fails it."""
    job = await put(executor, payload_of(executor, "missing"))
    tasks = unfit.queue._context.tasks

    async def tried(seconds: int) -> str:
        app.clock.advance(seconds)
        await app.drain()
        return (await job.info()).deferred or ""

    with monkeypatch.context() as old:
        old.delitem(tasks, executor)
        assert f"no worker that claimed it has a task named {executor!r}" in await tried(0)
        await tried(1800)
    assert "its arguments do not fit" in await tried(30)
    with monkeypatch.context() as old:
        old.delitem(tasks, executor)
        assert "no worker that claimed it has a task" in await tried(60)
    assert "its arguments do not fit" in await tried(200)
    fitting = (
        b'[[{"n":1,"when":"2026-03-02T12:00:00Z"}],{}]' if executor == "batch" else b"[[1],{}]"
    )
    monkeypatch.setattr(unfit, "unused", fitting, raising=False)
    app.clock.advance(60)
    await app.drain()
    info = await job.info()
    assert info.failure is not None
    assert info.failure.reason == "unfit"


async def test_inline_the_test_gets_the_misfit(app: testing.Sandbox) -> None:
    await put("inline", b"[[],{}]")
    with pytest.raises(UnfitArguments, match="missing a required argument: 'n'"):
        await app.drain(inline=True)


# ── how a deferred job says so ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["strange", "work"])
async def test_a_wait_that_times_out_says_why(queue: Queue, name: str) -> None:
    @queue.task
    async def work(n: int) -> None: ...

    job = await queue.task_by_name(name).enqueue("one")
    async with Worker(queue):
        said = await deferral(job)
        with pytest.raises(WaitTimeout) as caught:
            await job.result(timeout=0.01)
        with pytest.raises(WaitTimeout) as by_call:
            await queue.task_by_name(name).options(call_timeout=0.5).call("two")
    assert f": {said.partition(' from ')[0]}" in str(caught.value)
    assert ": deferred, because " in str(by_call.value)


async def test_a_wait_for_a_job_that_is_not_deferred_says_nothing(queue: Queue) -> None:
    job = await queue.task_by_name("work").enqueue(1)
    with pytest.raises(WaitTimeout, match=r"within 0\.01 s; the job continues"):
        await job.result(timeout=0.01)


# ── results that cannot be stored ─────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("executor", ["inline", "thread", "process", "batch"])
@pytest.mark.parametrize("result", ["opaque", "nan", "large"])
async def test_a_result_that_cannot_be_stored_fails_at_once_and_says_which_value(
    app: testing.Sandbox, executor: str, result: str
) -> None:
    task = unfit.queue.task_by_name(f"{executor}_{result}")
    job = await task.options(retry=Retry(3, base=0)).enqueue(1)
    assert await app.drain(delayed=True) == 1
    with pytest.raises(JobFailed) as caught:
        await job.result()
    failure = caught.value.failure
    assert (failure.reason, failure.type) == ("error", "jobq.UnstorableResult")
    assert failure.message.startswith(
        {
            "opaque": "result['rows'][3].price: a value of type object cannot be encoded",
            "nan": "result['rows'][3].price: nan is not a finite number",
            "large": f"the result of {executor}_large takes ",
        }[result]
    )
