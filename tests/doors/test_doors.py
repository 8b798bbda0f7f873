"""Every way to store a job does the same with every value: it stores it, or refuses it in the same
words and stores nothing.

The values are those of the contract's own tests (`jobq_conformance/spec_values.py`), which go
through every store. Here are the ways in front of a store: the public API, the command line, the
services of a jq-server, a hostile client, child processes, Spark.
"""

from __future__ import annotations

import asyncio
import enum
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from uuid import uuid4

import grpc
import msgspec
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from jobq import Queue, Unique, Worker
from jobq.access.principal import ANYONE
from jobq.cli.ctl import main
from jobq.client.sender import Sender
from jobq.core.records.commands import Rerun
from jobq.core.records.jobs import (
    Claim,
    JobKey,
    JobSpec,
    PutResult,
    QueueName,
    RetryData,
    UniqueSpec,
)
from jobq.core.records.queues import Fire, QueueConfig
from jobq.core.rules.options import BY_NAME, FIELDS, LETTER
from jobq.errors import InvalidJob, JobqError
from jobq.executors.pool.messages import AddRequest
from jobq.executors.pool.requests import serve
from jobq.operations.store_copy import QueueCopy, Side
from jobq.rpc import contract
from jobq.rpc.frames import encode
from jobq.rpc.v1 import admin_pb2, common_pb2, jobs_pb2
from jobq.server.config import ServerSettings
from jobq.stores import open_store
from jobq.stores.base import Store
from jobq.stores.remote.store import RemoteStore
from jobq.web.data.bodies import PriorityBody, RescheduleBody
from jobq.web.data.on_jobs import reprioritise, reschedule
from jobq.web.data.view import View
from jobq_conformance.kit import FakeClock, fail, release
from jobq_conformance.spec_values import (
    UNREAD,
    Case,
    Level,
    Number,
    Text,
    base,
    cases,
    fits,
    given,
    rule,
    seen,
    with_value,
)
from tests.doors import tasks
from tests.doors.options import SAME, call_of, expresses
from tests.server.serving import RunningServer, running

TENANT = "doors"
ALL = list(enumerate(cases()))


class Inexpressible(Exception):
    """This way in cannot say this: the caller's language has no such value."""


class Scene(NamedTuple):
    """A server, its store, and queues of both."""

    server: RunningServer
    store: Store
    remote: RemoteStore
    sender: Sender
    queue: Queue  # on the store
    keyed: Queue
    folder: Path


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(settings=ServerSettings(grpc_port=0, upkeep=False)) as started:
        yield started


@pytest.fixture
async def scene(server: RunningServer, tmp_path: Path) -> AsyncIterator[Scene]:
    name = uuid4().hex[:8]
    async with (
        open_store(server.url) as store,
        open_store(f"grpc://{server.address}") as remote,
        Queue(name, server.url, tenant=TENANT) as queue,
        Queue(f"{name}-keyed", server.url, tenant=TENANT) as keyed,
    ):
        assert isinstance(remote, RemoteStore)
        await store.put([base(queue.qname, "there", "id")])
        yield Scene(server, store, remote, Sender(store), queue, keyed, tmp_path)


# ── the ways in ───────────────────────────────────────────────────────────────────────────────────

Stored = JobKey | str
"""The job that was stored, or the words of the refusal."""
Door = Callable[[Scene, Case, JobSpec], Awaitable[JobKey]]


async def by_sender(scene: Scene, case: Case, spec: JobSpec) -> JobKey:
    await scene.sender.put(spec)
    return JobKey(spec.queue, spec.id)


async def by_sender_of_many(scene: Scene, case: Case, spec: JobSpec) -> JobKey:
    await scene.sender.put_many([spec])
    return JobKey(spec.queue, spec.id)


def _queue(scene: Scene, spec: JobSpec) -> Queue:
    if not any(spec.queue is each.qname for each in (scene.queue, scene.keyed)):
        raise Inexpressible("a Queue is checked when it is made")
    return scene.keyed if spec.queue == scene.keyed.qname else scene.queue


def _call(scene: Scene, case: Case, spec: JobSpec) -> Any:
    queue = _queue(scene, spec)
    if not expresses(case):
        raise Inexpressible
    return call_of(queue, spec.id, case)


async def by_enqueue(scene: Scene, case: Case, spec: JobSpec) -> JobKey:
    job = await _call(scene, case, spec).enqueue(n=spec.id)
    return JobKey(spec.queue, job.id)


async def by_enqueue_many(scene: Scene, case: Case, spec: JobSpec) -> JobKey:
    (job,) = await _call(scene, case, spec).enqueue_many([(spec.id,)])
    return JobKey(spec.queue, job.id)


async def by_bound_call(scene: Scene, case: Case, spec: JobSpec) -> JobKey:
    (job,) = await _queue(scene, spec).enqueue_many([_call(scene, case, spec).bind(spec.id)])
    return JobKey(spec.queue, job.id)


async def by_blocking_call(scene: Scene, case: Case, spec: JobSpec) -> JobKey:
    call = _call(scene, case, spec)
    job = await asyncio.to_thread(call.sync.enqueue, spec.id)
    return JobKey(spec.queue, job.id)


async def by_flow(scene: Scene, case: Case, spec: JobSpec) -> JobKey:
    async with _queue(scene, spec).flow() as flow:
        job = flow.add(_call(scene, case, spec), spec.id)
    return JobKey(spec.queue, job.id)


async def by_middleware(scene: Scene, case: Case, spec: JobSpec) -> JobKey:
    """The value is set by a middleware of the queue."""
    if case.field not in SAME or case.field in ("name", "meta") or not expresses(case):
        raise Inexpressible

    async def sets(request: Any, call_next: Any) -> Any:
        request.options[case.field] = case.value
        return await call_next(request)

    own = _queue(scene, spec)
    async with Queue(own.name, own.url, tenant=TENANT, enqueue_middleware=[sets]) as queue:
        job = await queue.task_by_name("step", id=spec.id).enqueue()
    return JobKey(spec.queue, job.id)


async def by_schedule(scene: Scene, case: Case, spec: JobSpec) -> JobKey:
    from jobq import Every

    if case.field in ("id", "delay_ms", "at_ms", "unique.mode"):
        raise Inexpressible  # the schedule decides, and a debounced job has a delay
    queue, call = _queue(scene, spec), _call(scene, case, spec)
    call = call._with_only({k: v for k, v in call._options.given.items() if k != "id"})
    id = f"schedule-{spec.id}"
    await queue.schedule(id, Every(3600), call, spec.id)
    job = await queue.run_schedule(id)
    await queue.unschedule(id)
    return JobKey(spec.queue, job.id)


def _message(case: Case, spec: JobSpec) -> common_pb2.NewJob:
    """The spec as a message. Inexpressible if the message does not say the same."""
    if case.field in _UNSAID or case.field.startswith("queue"):
        raise Inexpressible
    try:
        message = common_pb2.NewJob(
            queue=spec.queue.queue,
            **{
                name: _said(getattr(spec, name)) for name in _SENT if name not in ("queue", "after")
            },
            after=[
                common_pb2.Edge(queue=edge.job.queue.queue, id=edge.job.id, result=edge.data)
                for edge in spec.after
            ],
        )
        message.SerializeToString()
    except (TypeError, ValueError, OverflowError, AttributeError, RuntimeError):
        raise Inexpressible from None
    said = _SAID.get(case.field)
    value = _field(message, case.field) if said is None else said(message)
    if case.field in _ABSENT and not value:
        raise Inexpressible  # an empty value means that there is none
    if _kind(value) != _kind(case.value):
        raise Inexpressible
    return message


_SENT = [field.name for field in common_pb2.NewJob.DESCRIPTOR.fields]


def _said(value: Any) -> Any:
    if isinstance(value, RetryData):
        return common_pb2.Retry(**msgspec.structs.asdict(value))
    if isinstance(value, UniqueSpec):
        return common_pb2.Unique(**msgspec.structs.asdict(value))
    return value


_UNSAID = frozenset(
    {"retry", "unique", "after", "after.job", "after.job.queue", "after.job.queue.tenant"}
    | {"given_id", "schedule", "origin", "reserved"}
)
"""Fields that a message does not have, or that are messages themselves."""
_ABSENT = frozenset(
    {"payload", "id", "unique.mode", "after.job.queue.queue", "retry.delays_ms"}
    | {
        option.field
        for option in FIELDS
        if option.kind in ("text", "choice") or option.default == 1
    }
)
"""Fields of which a message cannot say that they are empty."""
_SAID: dict[str, Callable[[common_pb2.NewJob], Any]] = {
    "meta": lambda new: dict(new.meta),
    "retry.delays_ms": lambda new: tuple(new.retry.delays_ms),
    "after.data": lambda new: new.after[0].result,
    "after.job.id": lambda new: new.after[0].id,
    "after.job.queue.queue": lambda new: new.after[0].queue,
}
"""What a message says about a field whose name or type differs there."""


def _field(message: Any, field: str) -> Any:
    for name in field.split("."):
        message = getattr(message, name)
    return message


def _refused(error: grpc.RpcError) -> InvalidJob:
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT, error
    return InvalidJob(error.details())


async def _called(call: Callable[..., Any], request: Any) -> Any:
    try:
        return await asyncio.to_thread(call, request)
    except grpc.RpcError as error:
        raise _refused(error) from None


async def by_submit(scene: Scene, case: Case, spec: JobSpec) -> JobKey:
    request = jobs_pb2.SubmitRequest(tenant=TENANT, job=_message(case, spec))
    reply = await _called(scene.server.jobs.Submit, request)
    return JobKey(spec.queue, reply.id)


async def by_submit_many(scene: Scene, case: Case, spec: JobSpec) -> JobKey:
    request = jobs_pb2.SubmitManyRequest(tenant=TENANT, jobs=[_message(case, spec)])
    reply = await _called(scene.server.jobs.SubmitMany, request)
    return JobKey(spec.queue, reply.results[0].id)


async def by_submit_stream(scene: Scene, case: Case, spec: JobSpec) -> JobKey:
    request = jobs_pb2.SubmitStreamRequest(tenant=TENANT, jobs=[_message(case, spec)])
    await _called(scene.server.jobs.SubmitStream, iter([request]))
    return JobKey(spec.queue, spec.id)


async def by_submit_flow(scene: Scene, case: Case, spec: JobSpec) -> JobKey:
    request = jobs_pb2.SubmitFlowRequest(tenant=TENANT, jobs=[_message(case, spec)])
    reply = await _called(scene.server.jobs.SubmitFlow, request)
    return JobKey(spec.queue, reply.results[0].id)


async def by_put_schedule(scene: Scene, case: Case, spec: JobSpec) -> JobKey:
    if case.field in ("id", "delay_ms", "at_ms") or case.field.startswith("after"):
        raise Inexpressible  # the schedule decides
    id, job = f"schedule-{spec.id}", _message(case, spec)
    schedule = admin_pb2.Schedule(queue=spec.queue.queue, id=id, every_ms=3_600_000, job=job)
    request = admin_pb2.PutScheduleRequest(tenant=TENANT, schedule=schedule)
    reply = await _called(scene.server.admin.PutSchedule, request)
    at = Fire(queue=spec.queue, schedule=id, at_ms=reply.schedule.next_ms, next_ms=None)
    assert await scene.store.fire([at]) == [True]
    await scene.store.drop_schedule(spec.queue, id)
    return JobKey(spec.queue, at.job_id)


async def by_hostile_client(scene: Scene, case: Case, spec: JobSpec) -> JobKey:
    """The exchange stream, from a client that checks nothing."""
    put = contract.METHODS["put"]
    try:
        sent = encode(put.arguments([spec]))
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise Inexpressible from None
    try:
        (read,) = msgspec.msgpack.decode(sent, type=put.arguments).specs  # type: ignore[attr-defined]
        if _kind(_at(read, case.field)) != _kind(_at(spec, case.field)):
            raise Inexpressible
    except (msgspec.MsgspecError, ValueError, AttributeError):
        # What the server reads is not a spec, or has another value.
        with pytest.raises(InvalidJob, match="cannot read this call"):
            await scene.remote._connection.call(put, msgspec.Raw(sent))
        raise Inexpressible from None
    await scene.remote._connection.call(put, msgspec.Raw(sent))
    return JobKey(spec.queue, spec.id)


def _at(value: Any, field: str) -> Any:
    """The value of a field of a spec."""
    for name in field.split("."):
        value = value[0] if isinstance(value, tuple) and not hasattr(value, name) else value
        value = getattr(value, name)
    return value


def _kind(value: Any) -> Any:
    """The types of a value and of what is in it, as far as they are sent."""
    if isinstance(value, msgspec.Struct):
        return [_kind(each) for each in msgspec.structs.astuple(value)]
    if isinstance(value, (tuple, list)):
        return [_kind(each) for each in value]
    if isinstance(value, dict):
        return {"keys": _kind(list(value)), "values": _kind(list(value.values()))}
    for plain in (bool, int, float, str, bytes):
        if isinstance(value, plain):
            return plain
    return type(value)


async def by_remote_queue(scene: Scene, case: Case, spec: JobSpec) -> JobKey:
    await scene.remote.put([spec])
    return JobKey(spec.queue, spec.id)


async def by_spark(scene: Scene, case: Case, spec: JobSpec) -> JobKey:
    pa = pytest.importorskip("pyarrow")
    from jobq.api.task import Call
    from jobq.pipeline.datasource.rows import OPTIONS, Rows

    column = {"name": "_task", "id": "_id"}.get(case.field, f"_{case.field}")
    if (case.field not in SAME) or column[1:] not in (*OPTIONS, "task", "id"):
        raise Inexpressible
    if case.value is None or (case.field == "name" and not isinstance(case.value, str)):
        raise Inexpressible  # a null is no option
    if case.field == "name" and not case.value:
        raise Inexpressible  # nor is an empty name
    if isinstance(case.value, (enum.Enum, tuple)):
        raise Inexpressible  # a column has neither
    if case.field == "id" and not isinstance(case.value, str):
        raise Inexpressible  # any value becomes an id by its text
    try:
        kind = pa.map_(pa.string(), pa.string()) if isinstance(case.value, dict) else None
        value = list(case.value.items()) if isinstance(case.value, dict) else case.value
        columns = {column: pa.array([value], kind)}
        if case.field != "id":
            columns["_id"] = pa.array([spec.id])
        batch = pa.record_batch(columns)
        if _kind(batch[column].to_pylist(maps_as_pydicts="strict")[0]) != _kind(case.value):
            raise Inexpressible
    except (pa.ArrowException, TypeError, ValueError, OverflowError, RuntimeError):
        raise Inexpressible from None
    queue = _queue(scene, spec)
    rows = Rows(queue, {} if case.field == "name" else {"task": "step"}, batch.schema.names)
    (call,) = rows.calls(batch)
    if not isinstance(call, Call):
        raise call[1]
    (job,) = await queue.enqueue_many([call])
    return JobKey(spec.queue, job.id)


_FLAGS = {"name": "", "id": "--id"} | {
    option.field: f"--{option.flag or name.replace('_', '-')}"
    for name, option in BY_NAME.items()
    if option.cli and name == option.field and option.kind in ("text", "count")
}


async def by_command_line(scene: Scene, case: Case, spec: JobSpec) -> JobKey:
    """A value on the command line is text, or the number that the text stands for."""
    number = case.field in BY_NAME and BY_NAME[case.field].kind == "count"
    if case.field not in _FLAGS or type(case.value) is not (int if number else str):
        raise Inexpressible
    if number and abs(int(case.value)) > 10**18:
        raise Inexpressible  # it would be refused as text
    flag, text = _FLAGS[case.field], str(case.value)
    if not text.isprintable() or (not flag and not text):
        raise Inexpressible
    name = text if not flag else "step"
    options = [] if case.field == "id" else ["--id", spec.id]
    options += [f"{flag}={text}"] if flag else []
    queue = _queue(scene, spec)
    return await _ctl(scene, queue, *options, "--", name)


async def by_lines(scene: Scene, case: Case, spec: JobSpec) -> JobKey:
    """A line of a file: the names of the API, and the values of JSON."""
    if case.field not in (*SAME, "delay_ms", "ttl_ms") or not expresses(case):
        raise Inexpressible
    if isinstance(case.value, (bytes, bytearray, enum.Enum, tuple)):
        raise Inexpressible
    if case.field in BY_NAME and not BY_NAME[case.field].cli:
        raise Inexpressible
    if case.field == "name" and type(case.value) is not str:
        raise Inexpressible  # a line has no such field; without a name it is the command's
    field = case.field.removesuffix("_ms")
    value = case.value
    if field != case.field and _kind(value) is int:
        value = value / 1000 if abs(value) < 10**15 else value
    try:
        line = json.dumps({"id": spec.id, "name": "step", field: value}, allow_nan=False)
        read = json.loads(line)
    except (TypeError, ValueError, RuntimeError):
        raise Inexpressible from None
    if _kind(read[field]) != _kind(value) or "\\ud8" in line:
        raise Inexpressible
    file = scene.folder / "lines.jsonl"
    file.write_text(line)
    await _ctl(scene, _queue(scene, spec), "--lines", str(file))
    return JobKey(spec.queue, spec.id)


async def _ctl(scene: Scene, queue: Queue, *args: str) -> JobKey:
    command = ["--url", queue.url, "--tenant", TENANT, "job", "submit", "-q", queue.name]
    run = partial(CliRunner().invoke, main, [*command, "-o", "json", *args])
    result = await asyncio.to_thread(run)
    if result.exit_code == 0:
        return JobKey(queue.qname, json.loads(result.stdout).get("id", ""))
    assert isinstance(result.exception, SystemExit), result.exception
    raise InvalidJob(" ".join(result.stderr.split()))


DOORS: dict[str, tuple[Door, bool]] = {
    # The function, and whether it speaks of times and policies in words of its own.
    "Sender.put": (by_sender, False),
    "Sender.put_many": (by_sender_of_many, False),
    "enqueue": (by_enqueue, True),
    "enqueue_many": (by_enqueue_many, True),
    "bind": (by_bound_call, True),
    "sync.enqueue": (by_blocking_call, True),
    "flow": (by_flow, True),
    "enqueue_middleware": (by_middleware, True),
    "schedule": (by_schedule, True),
    "df.write": (by_spark, True),
    "jq-ctl job submit": (by_command_line, True),
    "jq-ctl job submit --lines": (by_lines, True),
    "grpc://": (by_remote_queue, False),
    "a hostile client": (by_hostile_client, False),
    "Submit": (by_submit, False),
    "SubmitMany": (by_submit_many, False),
    "SubmitStream": (by_submit_stream, False),
    "SubmitFlow": (by_submit_flow, False),
    "PutSchedule": (by_put_schedule, False),
}


@pytest.mark.parametrize("name", DOORS)
async def test_every_way_in_stores_the_same_or_refuses_in_the_same_words(
    scene: Scene, name: str
) -> None:
    door, own_words = DOORS[name]
    wrong: list[str] = []
    stored = {JobKey(scene.queue.qname, "there")}
    tried = 0
    for n, case in ALL:
        queue = scene.keyed.qname if case.field == "key" else scene.queue.qname
        spec = with_value(base(queue, f"{name}-{n}".replace(" ", "-"), case.field), case)
        expected = rule(spec)
        if case.field == "key" and (isinstance(expected, JobSpec) and expected.key is None):
            continue
        try:
            key = await door(scene, case, spec)
        except Inexpressible:
            continue
        except JobqError as error:
            tried += 1
            if not isinstance(error, InvalidJob) or isinstance(expected, JobSpec):
                if isinstance(expected, JobSpec) and not fits(expected):
                    continue
                wrong.append(f"{case!r}: {type(error).__name__}: {error}, and not {expected}")
            elif expected not in str(error) and not (own_words and case.field not in SAME):
                wrong.append(f"{case!r}: {error}, and not {expected}")
            continue
        tried += 1
        if isinstance(expected, str):
            wrong.append(f"{case!r}: accepted, and not refused: {expected}")
            continue
        key = JobKey(expected.queue, key.id)
        stored.add(key)
        (record,) = await scene.store.get([key])
        if record is None:
            wrong.append(f"{case!r}: not stored")
        elif case.field not in UNREAD and seen(record, case.field) != given(expected, case.field):
            wrong.append(f"{case!r}: stored as {seen(record, case.field)!r}")
        if case.field == "unique.lock":
            await scene.store.release_lock(queue, expected.unique.lock)  # type: ignore[union-attr]
    assert "\n".join(wrong) == ""
    assert tried > 40
    for queue in (scene.queue.qname, scene.keyed.qname):  # nothing is left of refused jobs
        count = sum((await scene.store.count(queue)).values())
        assert count == sum(key.queue == queue for key in stored)


# ── ways in that take all values at once ──────────────────────────────────────────────────────────


@pytest.mark.parametrize("task", ["adds", "adds_in_a_process"])
async def test_a_child_is_checked_like_any_other_job(
    task: str,
) -> None:
    """Also in a child process, whose worker checks what the child asks for."""
    url = f"memory://{uuid4().hex}"
    tasks.queue._context.connection.move(url)
    async with tasks.queue, open_store(url) as store:
        async with Worker(tasks.queue):
            job = await getattr(tasks, task).enqueue()
            added: tasks.Added = await job.result(timeout=60)
        wrong: list[str] = []
        for n, id, words in added:
            case = ALL[n][1]
            expected = rule(with_value(base(tasks.queue.qname, f"child-{n}", case.field), case))
            if id is None:
                same = words == expected or case.field not in SAME
                if isinstance(expected, JobSpec) or not same:
                    wrong.append(f"{case!r}: {words}, and not {expected}")
                continue
            (record,) = await store.get([JobKey(tasks.queue.qname, id)])
            if isinstance(expected, str):
                wrong.append(f"{case!r}: accepted, and not refused: {expected}")
            elif record is None or seen(record, case.field) != given(expected, case.field):
                wrong.append(f"{case!r}: stored as {record}")
    await tasks.queue._context.connection.move_back()
    assert "\n".join(wrong) == ""
    assert len(added) == len(tasks.children())


async def test_a_child_process_that_checks_nothing_stores_nothing_else() -> None:
    """What a worker is asked for over the line to a child. A refused child leaves no note."""
    queue = QueueName("t", "work")
    claim = Claim(queues=(queue,), limit=1, lease_ms=60_000)
    async with open_store(f"memory://{uuid4().hex}") as store:
        await store.put([base(queue, "there", "id")])
        (lease,) = (await store.settle([], worker="w", call="1", then=claim)).leases
        run: Any = SimpleNamespace(lease=lease, store=store, is_stored_at=lambda url: True)
        wrong: list[str] = []
        for n, case in ALL:
            spec = with_value(base(queue, f"j{n}", case.field), case)
            if isinstance(expected := rule(spec), JobSpec):
                continue
            try:
                sent = encode(AddRequest(n=n, label="1", spec=spec, url="", note=True))
                request = msgspec.msgpack.decode(sent, type=AddRequest)
                if _kind(_at(request.spec, case.field)) != _kind(_at(spec, case.field)):
                    continue
            except (TypeError, ValueError, OverflowError, AttributeError, RuntimeError):
                continue
            reply = await serve(run, request)
            other = "is in another store or tenant"
            if reply.error != ("InvalidJob", expected) and other not in str(reply.error):
                wrong.append(f"{case!r}: {reply}, and not {expected}")
        assert "\n".join(wrong) == ""
        again = (await store.settle([release(lease)], worker="w", call="2", then=claim)).leases
        assert [(lease.id, lease.signals) for lease in again] == [("there", ())]
        assert sum((await store.count(queue)).values()) == 1


FAMILY = frozenset({"name", "payload", *(option.field for option in LETTER)})
"""Fields that a dead letter takes over."""


async def test_what_is_stored_stays_the_same_wherever_it_goes() -> None:
    """A rerun, a dead letter, and a copy to another store."""
    here, there = (f"memory://{uuid4().hex}" for _ in range(2))
    queue = QueueName("t", "work")
    letters = QueueName("t", "dead")
    specs: dict[str, tuple[Case, JobSpec]] = {}
    for n, case in ALL:
        if case.field.split(".")[0] not in ("queue", "key", "unique", "after", "id"):
            spec = rule(with_value(base(queue, f"j{n}", case.field), case))
            if isinstance(spec, JobSpec):
                specs[spec.id] = (case, spec)
    clock = FakeClock()
    async with open_store(here, clock=clock) as source, open_store(there, clock=clock) as target:
        await source.declare(queue, QueueConfig(dead_letters=letters.queue))
        await source.put(
            [replace(s, at_ms=None, delay_ms=0, ttl_ms=None) for _, s in specs.values()]
        )
        claim = Claim(queues=(queue,), limit=len(specs), lease_ms=60_000)
        leases = (await source.settle([], worker="w", call="1", then=claim)).leases
        assert len(leases) == len(specs)
        await source.settle([fail(lease) for lease in leases], worker="w", call="2")
        keys = [JobKey(queue, id) for id in specs]
        first, second = keys[::2], keys[1::2]
        assert set(await source.alter([Rerun(job=key) for key in first])) == {"done"}
        report = await QueueCopy(
            Side(source, actor="a"), Side(target, actor="a"), queue, wait_s=0.0, clock=clock
        ).run()
        assert report.complete
        assert report.failed == len(second)
        records = await target.get(keys)
        dead = await source.get([JobKey(letters, f"work/{key.id}/0") for key in keys])
    times = frozenset({"at_ms", "delay_ms", "ttl_ms", "reserved"})
    for key, record, letter in zip(keys, records, dead, strict=True):
        case, spec = specs[key.id]
        assert record is not None
        assert letter is not None
        if case.field not in times:
            assert seen(record, case.field) == given(spec, case.field), case
        if case.field in FAMILY:
            assert seen(letter, case.field) == given(spec, case.field), case


async def test_the_dashboard_changes_a_job_as_put_would_have_stored_it() -> None:
    queue = QueueName("t", "work")
    wrong: list[str] = []
    async with open_store(f"memory://{uuid4().hex}") as store:
        view = View(store=store, principal=ANYONE, clock=FakeClock())
        for n, case in ALL:
            if case.field not in ("priority", "at_ms") or _kind(case.value) is not int:
                continue  # the bodies of requests have no other values
            spec = base(queue, f"j{n}", case.field)
            expected = rule(with_value(spec, case))
            await store.put([spec])
            place: dict[str, Any] = {"tenant": "t", "queue": "work", "id": spec.id}
            try:
                if case.field == "priority":
                    await reprioritise(view, PriorityBody(**place, priority=case.value))
                else:
                    await reschedule(view, RescheduleBody(**place, at_ms=case.value))
                said = None
            except InvalidJob as error:
                said = str(error)
            if said != (expected if isinstance(expected, str) else None):
                wrong.append(f"{case!r}: {said}, and not {expected}")
    assert "\n".join(wrong) == ""


# ── beside others ─────────────────────────────────────────────────────────────────────────────────


async def test_a_bad_job_fails_no_other_caller(scene: Scene) -> None:
    """Every refused value, each beside six callers whose jobs are in the same put."""
    for n, case in ALL:
        spec = with_value(base(scene.queue.qname, f"bad-{n}", case.field), case)
        if isinstance(expected := rule(spec), JobSpec):
            continue
        others = [base(scene.queue.qname, f"good-{n}-{i}", "id") for i in range(6)]
        every = [*others[:3], spec, *others[3:]]
        found = await asyncio.gather(*map(scene.sender.put, every), return_exceptions=True)
        refused = found.pop(3)
        assert isinstance(refused, InvalidJob)
        assert str(refused) == expected
        assert all(isinstance(each, PutResult) for each in found), case


async def test_a_subclass_of_a_string_fails_no_other_caller(scene: Scene) -> None:
    task = scene.queue.task_by_name("step")
    strange = [
        task.options(meta={"m": Text("v")}),
        task.options(unique=Unique(mode=Text("keep_last"))),  # type: ignore[arg-type]
        task.options(retry=Level.FIVE, priority=Number(3)),
    ]
    jobs = await asyncio.gather(
        *(each.enqueue(n) for n, each in enumerate([*[task] * 6, *strange]))
    )
    assert [(await job.info()).state for job in jobs] == ["waiting"] * 9
    assert dict((await jobs[6].info()).meta) == {"m": "v"}
    assert (await jobs[8].info()).priority == 3


async def test_a_job_waits_neither_for_itself_nor_for_another_tenant(scene: Scene) -> None:
    queue = scene.queue
    task = queue.task_by_name("step", id="a")
    with pytest.raises(InvalidJob, match=r"job 'a' \(step\) waits for itself"):
        await task.options(after=[queue.job("a")]).enqueue()
    async with Queue(queue.name, queue.url, tenant="elsewhere") as other:
        job = await other.task_by_name("step").enqueue()
        words = rf"job 'a' \(step\) waits for a job of another tenant: '{job.id}'"
        with pytest.raises(InvalidJob, match=words):
            await task.options(after=[job]).enqueue()
        with pytest.raises(InvalidJob, match=words):
            async with queue.flow() as flow:
                flow.add(task.options(after=[job]))
