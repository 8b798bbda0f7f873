"""JobService on a real server: submitting jobs, and what becomes of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import grpc
import pytest
from grpc import StatusCode

from jobq.core.records.jobs import Complete, JobKey, LeaseRef, Note, QueueName
from jobq.core.records.queues import Limits, QueueConfig
from jobq.core.records.states import State
from jobq.rpc.v1 import common_pb2 as common
from jobq.rpc.v1 import jobs_pb2 as pb
from tests.server.serving import (
    PATIENCE_S,
    RunningServer,
    ServerProcess,
    claim,
    complete,
    fail,
    refused,
    running,
)

WITHIN = PATIENCE_S


def submit(server: RunningServer | ServerProcess, id: str = "", **fields: object) -> str:
    """Submit a job to the queue `q` and return its id."""
    new = common.NewJob(**{"queue": "q", "name": "charge", "id": id, **fields})  # type: ignore[arg-type]
    return server.jobs.Submit(pb.SubmitRequest(job=new), timeout=WITHIN).id


# ── submitting ────────────────────────────────────────────────────────────────────────────────────


def test_a_submitted_job_can_be_read(running_server: RunningServer) -> None:
    new = common.NewJob(
        queue="q",
        name="charge",
        payload=b'[["acme"],{}]',
        priority=7,
        key="acme",
        delay_ms=60_000,
        ttl_ms=5_000,
        retry=common.Retry(max_retries=2, base_ms=500),
        meta={"trace": "abc"},
    )
    reply = running_server.jobs.Submit(pb.SubmitRequest(job=new), timeout=WITHIN)
    assert (reply.state, reply.duplicate) == ("delayed", False)
    job = running_server.jobs.Get(pb.GetRequest(queue="q", id=reply.id), timeout=WITHIN).job
    assert (job.tenant, job.queue, job.name) == ("default", "q", "charge")
    assert (job.payload, job.codec, job.priority, job.key) == (b'[["acme"],{}]', "json", 7, "acme")
    assert dict(job.meta) == {"trace": "abc"}
    assert job.due_ms == job.created_ms + 60_000
    assert not job.HasField("started_ms")
    (record,) = running_server.do(
        running_server.context.store.get([JobKey(QueueName("default", "q"), reply.id)])
    )
    assert record is not None
    assert record.options.retry is not None
    assert (record.options.retry.max_retries, record.options.retry.base_ms) == (2, 500)
    assert record.options.ttl_ms == 5_000


def test_a_job_without_a_payload_is_a_call_without_arguments(running_server: RunningServer) -> None:
    submit(running_server, "a")
    submit(running_server, "b", codec="msgpack")
    get = running_server.jobs.Get
    assert get(pb.GetRequest(queue="q", id="a"), timeout=WITHIN).job.payload == b"[[],{}]"
    assert get(pb.GetRequest(queue="q", id="b"), timeout=WITHIN).job.payload == b"\x92\x90\x80"


def test_a_duplicate_submit_succeeds_and_says_so(running_server: RunningServer) -> None:
    assert submit(running_server, "a") == "a"
    complete(running_server, "q", b"42")
    again = running_server.jobs.Submit(
        pb.SubmitRequest(job=common.NewJob(queue="q", name="charge", id="a")), timeout=WITHIN
    )
    assert again.duplicate
    assert (again.state, again.found.state, again.found.result) == ("completed", "completed", b"42")


def test_the_idempotency_key_in_the_metadata_becomes_the_id(running_server: RunningServer) -> None:
    def send(id: str = "") -> pb.SubmitResponse:
        return running_server.jobs.Submit(
            pb.SubmitRequest(job=common.NewJob(queue="q", name="charge", id=id)),
            timeout=WITHIN,
            metadata=(("idempotency-key", "order-7"),),
        )

    assert (send().id, send().duplicate) == ("order-7", True)
    assert send("other").id == "other", "the field takes precedence"
    with refused(StatusCode.INVALID_ARGUMENT, "idempotency-key"):
        running_server.jobs.Submit(
            pb.SubmitRequest(job=common.NewJob(queue="q", name="charge")),
            timeout=WITHIN,
            metadata=(("idempotency-key", "x" * 300),),
        )


def test_a_unique_lock_makes_a_duplicate_of_another_id(running_server: RunningServer) -> None:
    unique = common.Unique(lock="invoice 7")
    first = submit(running_server, unique=unique)
    reply = running_server.jobs.Submit(
        pb.SubmitRequest(job=common.NewJob(queue="q", name="charge", unique=unique)),
        timeout=WITHIN,
    )
    assert (reply.id, reply.duplicate) == (first, True)


def test_wrong_fields_are_refused_by_name(running_server: RunningServer) -> None:
    wrong = {
        "queue": common.NewJob(name="n"),
        "name": common.NewJob(queue="q"),
        "priority": common.NewJob(queue="q", name="n", priority=-1),
        "delay_ms": common.NewJob(queue="q", name="n", delay_ms=-5),
        "at_ms": common.NewJob(queue="q", name="n", at_ms=2**62),
        "ttl_ms": common.NewJob(queue="q", name="n", ttl_ms=0),
        "id": common.NewJob(queue="q", name="n", id="a{b}"),
        "cost": common.NewJob(queue="q", name="n", cost=-2),
        "retry.factor": common.NewJob(queue="q", name="n", retry=common.Retry(factor=float("nan"))),
        "retry.delays_ms[1]": common.NewJob(
            queue="q", name="n", retry=common.Retry(delays_ms=[1, -1])
        ),
        "unique.mode": common.NewJob(queue="q", name="n", unique=common.Unique(lock="a", mode="b")),
        "unique.lock": common.NewJob(queue="q", name="n", unique=common.Unique()),
        "on_child_failure": common.NewJob(queue="q", name="n", on_child_failure="retry"),
        "meta name": common.NewJob(queue="q", name="n", meta={"": "x"}),
    }
    for field, new in wrong.items():
        with refused(StatusCode.INVALID_ARGUMENT, field, "InvalidJob"):
            running_server.jobs.Submit(pb.SubmitRequest(job=new), timeout=WITHIN)
    page = running_server.jobs.List(pb.ListRequest(queue="q"), timeout=WITHIN)
    assert not page.jobs, "nothing was stored"


def test_a_payload_that_is_too_large_is_an_invalid_argument(running_server: RunningServer) -> None:
    with refused(StatusCode.INVALID_ARGUMENT, "1,048,577 bytes", "PayloadTooLarge"):
        submit(running_server, payload=b"x" * (2**20 + 1))


def test_a_message_that_is_too_large_is_an_invalid_argument(running_server: RunningServer) -> None:
    new = common.NewJob(queue="q", name="n", payload=b"x" * 2**20)
    with refused(StatusCode.INVALID_ARGUMENT, "send fewer jobs", "PayloadTooLarge"):
        running_server.jobs.SubmitMany(pb.SubmitManyRequest(jobs=[new] * 17), timeout=WITHIN)


def test_a_full_queue_is_exhausted(running_server: RunningServer) -> None:
    _bound(running_server, "q", 2)
    submit(running_server, "a")
    submit(running_server, "b")
    with refused(StatusCode.RESOURCE_EXHAUSTED, "max_waiting=2", "QueueFull"):
        submit(running_server, "c")
    assert submit(running_server, "a") == "a", "a duplicate is never refused"


def _bound(server: RunningServer, queue: str, max_waiting: int) -> None:
    config = QueueConfig(limits=Limits(max_waiting=max_waiting))
    server.do(server.context.store.declare(QueueName("default", queue), config))


def test_a_job_of_the_wrong_mode_fails_a_precondition(running_server: RunningServer) -> None:
    submit(running_server)
    with refused(StatusCode.FAILED_PRECONDITION, "is plain", "ConfigError"):
        submit(running_server, key="acme")


def test_many_jobs_are_stored_in_order_with_a_result_each(running_server: RunningServer) -> None:
    _bound(running_server, "q", 2)
    submit(running_server, "b")
    jobs = [common.NewJob(queue="q", name="n", id=id) for id in ("a", "b", "c")]
    reply = running_server.jobs.SubmitMany(pb.SubmitManyRequest(jobs=jobs), timeout=WITHIN)
    assert [each.id for each in reply.results] == ["a", "b", "c"]
    assert [each.duplicate for each in reply.results] == [False, True, False]
    assert [each.refused.code for each in reply.results] == [0, 0, 8]
    assert "max_waiting=2" in reply.results[2].refused.message


def test_one_wrong_job_of_many_refuses_all(running_server: RunningServer) -> None:
    jobs = [common.NewJob(queue="q", name="n"), common.NewJob(queue="q", name="n", priority=-1)]
    with refused(StatusCode.INVALID_ARGUMENT, "job 1: priority=-1"):
        running_server.jobs.SubmitMany(pb.SubmitManyRequest(jobs=jobs), timeout=WITHIN)
    assert not running_server.jobs.List(pb.ListRequest(queue="q"), timeout=WITHIN).jobs


def test_a_job_that_does_not_fit_its_queue_refuses_thousands(
    running_server: RunningServer,
) -> None:
    jobs = [common.NewJob(queue="q", name="n", id=str(n)) for n in range(2_500)]
    for queue, key in (("q", "acme"), ("other", "")):
        submit(running_server, queue="other", key="acme")
        wrong = common.NewJob(queue=queue, name="n", key=key)
        with refused(StatusCode.FAILED_PRECONDITION, "is plain" if key else "is keyed"):
            running_server.jobs.SubmitMany(
                pb.SubmitManyRequest(jobs=[*jobs, wrong]), timeout=WITHIN
            )
        assert not running_server.jobs.List(pb.ListRequest(queue="q"), timeout=WITHIN).jobs
    reply = running_server.jobs.SubmitMany(pb.SubmitManyRequest(jobs=jobs), timeout=WITHIN)
    assert [each.id for each in reply.results] == [each.id for each in jobs]


def test_a_stream_of_jobs_is_stored_and_counted(running_server: RunningServer) -> None:
    _bound(running_server, "small", 3)

    def requests() -> Iterator[pb.SubmitStreamRequest]:
        for n in range(50):
            jobs = [common.NewJob(queue="q", name="n", id=f"{n}.{m}") for m in range(100)]
            yield pb.SubmitStreamRequest(jobs=jobs)
        yield pb.SubmitStreamRequest(jobs=[common.NewJob(queue="q", name="n", id="0.0")])
        yield pb.SubmitStreamRequest(jobs=[common.NewJob(queue="small", name="n")] * 5)

    reply = running_server.jobs.SubmitStream(requests(), timeout=WITHIN)
    assert (reply.accepted, reply.duplicates, reply.refused) == (5003, 1, 2)
    assert [each.index for each in reply.refusals] == [5004, 5005]
    counts = running_server.do(running_server.context.store.count(QueueName("default", "q")))
    assert counts[State.WAITING] == 5000
    order = claim(running_server, "q", limit=250).leases
    assert [lease.id for lease in order][:250] == [
        f"{n}.{m}" for n in range(3) for m in range(100)
    ][:250]


def test_a_wrong_job_ends_the_stream_and_names_its_place(running_server: RunningServer) -> None:
    requests = [
        pb.SubmitStreamRequest(jobs=[common.NewJob(queue="q", name="n", id="a")]),
        pb.SubmitStreamRequest(jobs=[common.NewJob(queue="q", name="n", cost=-1)]),
    ]
    with refused(StatusCode.INVALID_ARGUMENT, "job 1: cost=-1"):
        running_server.jobs.SubmitStream(iter(requests), timeout=WITHIN)
    assert running_server.jobs.Get(pb.GetRequest(queue="q", id="a"), timeout=WITHIN).job.id == "a"


def test_an_empty_stream_stores_nothing(running_server: RunningServer) -> None:
    reply = running_server.jobs.SubmitStream(iter(()), timeout=WITHIN)
    assert (reply.accepted, reply.duplicates, reply.refused) == (0, 0, 0)


def test_a_flow_is_stored_whole_and_runs_in_order(running_server: RunningServer) -> None:
    jobs = [
        common.NewJob(queue="q", name="email", id="mail", after=[common.Edge(id="a", result=True)]),
        common.NewJob(queue="q", name="charge", id="a"),
        common.NewJob(queue="q", name="log"),
    ]
    request = pb.SubmitFlowRequest(jobs=jobs, flow="order-7")
    reply = running_server.jobs.SubmitFlow(request, timeout=WITHIN)
    assert [each.id for each in reply.results] == ["mail", "a", "order-7.2"]
    assert [each.state for each in reply.results] == ["blocked", "waiting", "waiting"]
    again = running_server.jobs.SubmitFlow(request, timeout=WITHIN)
    assert [each.id for each in again.results] == ["mail", "a", "order-7.2"]
    assert {complete(running_server, "q", b"1"), complete(running_server, "q", b"1")} == {
        "a",
        "order-7.2",
    }
    (lease,) = claim(running_server, "q").leases
    assert (lease.id, [given.result for given in lease.inputs]) == ("mail", [b"1"])


def test_a_flow_with_a_cycle_is_refused(running_server: RunningServer) -> None:
    jobs = [
        common.NewJob(queue="q", name="n", id="a", after=[common.Edge(id="b")]),
        common.NewJob(queue="q", name="n", id="b", after=[common.Edge(id="a")]),
    ]
    with refused(StatusCode.INVALID_ARGUMENT, "cycle"):
        running_server.jobs.SubmitFlow(pb.SubmitFlowRequest(jobs=jobs), timeout=WITHIN)
    with refused(StatusCode.INVALID_ARGUMENT, "number of jobs"):
        running_server.jobs.SubmitFlow(pb.SubmitFlowRequest(), timeout=WITHIN)


def test_a_flow_that_does_not_fit_is_refused_whole(running_server: RunningServer) -> None:
    _bound(running_server, "q", 1)
    jobs = [common.NewJob(queue="q", name="n") for _ in range(2)]
    with refused(StatusCode.RESOURCE_EXHAUSTED, "max_waiting=1", "QueueFull"):
        running_server.jobs.SubmitFlow(pb.SubmitFlowRequest(jobs=jobs), timeout=WITHIN)
    assert not running_server.jobs.List(pb.ListRequest(queue="q"), timeout=WITHIN).jobs


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


def test_a_job_that_does_not_exist_is_not_found(running_server: RunningServer) -> None:
    jobs = running_server.jobs
    with refused(StatusCode.NOT_FOUND, "no job 'x'", "JobNotFound"):
        jobs.Get(pb.GetRequest(queue="q", id="x"), timeout=WITHIN)
    with refused(StatusCode.NOT_FOUND, "no job 'x'"):
        jobs.Wait(pb.WaitRequest(queue="q", id="x"), timeout=WITHIN)
    with refused(StatusCode.NOT_FOUND, "no job 'x'"):
        jobs.Cancel(pb.CancelRequest(queue="q", id="x"), timeout=WITHIN)
    with refused(StatusCode.NOT_FOUND, "no job 'x'"):
        jobs.Rerun(pb.RerunRequest(queue="q", id="x"), timeout=WITHIN)
    with refused(StatusCode.NOT_FOUND, "no job 'x'"):
        jobs.Signal(pb.SignalRequest(queue="q", id="x", name="s"), timeout=WITHIN)
    for follow in (False, True):
        with refused(StatusCode.NOT_FOUND, "no job 'x'"):
            list(jobs.Logs(pb.LogsRequest(queue="q", id="x", follow=follow), timeout=WITHIN))


def test_a_wait_ends_with_the_job(running_server: RunningServer) -> None:
    submit(running_server, "a")
    waiting = running_server.jobs.Wait.future(
        pb.WaitRequest(queue="q", id="a", timeout_ms=60_000), timeout=WITHIN
    )
    complete(running_server, "q", b"42")
    reply = waiting.result(timeout=WITHIN)
    assert (reply.ended, reply.job.state, reply.job.result) == (True, "completed", b"42")


def test_a_wait_that_is_too_short_returns_the_job_as_it_is(running_server: RunningServer) -> None:
    submit(running_server, "a")
    wait = running_server.jobs.Wait
    reply = wait(pb.WaitRequest(queue="q", id="a", timeout_ms=1), timeout=WITHIN)
    assert (reply.ended, reply.job.state) == (False, "waiting")
    reply = wait(pb.WaitRequest(queue="q", id="a"), timeout=0.5)
    assert not reply.ended, "the reply comes before the deadline of the call"


def test_a_failed_job_says_why(running_server: RunningServer) -> None:
    submit(running_server, "a")
    fail(running_server, "q", "no such invoice")
    job = running_server.jobs.Get(pb.GetRequest(queue="q", id="a"), timeout=WITHIN).job
    assert (job.state, job.failure.type, job.failure.message) == (
        "failed",
        "ValueError",
        "no such invoice",
    )
    assert [each.message for each in job.errors] == ["no such invoice"]


def test_lists_are_filtered_and_paged(running_server: RunningServer) -> None:
    for n in range(25):
        submit(running_server, f"j{n:02}", name="even" if n % 2 == 0 else "odd", meta={"n": str(n)})
    for _ in range(5):
        complete(running_server, "q")

    def pages(**criteria: object) -> list[str]:
        found: list[str] = []
        cursor = ""
        while True:
            page = running_server.jobs.List(
                pb.ListRequest(queue="q", cursor=cursor, **criteria),  # type: ignore[arg-type]
                timeout=WITHIN,
            )
            found += [job.id for job in page.jobs]
            if not (cursor := page.cursor):
                return found

    assert len(pages(limit=10)) == 25
    assert sorted(pages(states=["completed"])) == [f"j{n:02}" for n in range(5)]
    both = pages(states=["completed", "waiting"], name="od*", limit=3)
    assert sorted(both) == [f"j{n:02}" for n in range(1, 25, 2)]
    assert pages(meta={"n": "7"}, limit=2) == ["j07"]
    assert pages(states=["waiting"], oldest_first=True, limit=4) == [
        f"j{n:02}" for n in range(5, 25)
    ]
    assert pages(created_before_ms=1) == []


def test_a_list_refuses_what_it_does_not_know(running_server: RunningServer) -> None:
    list_ = running_server.jobs.List
    with refused(StatusCode.INVALID_ARGUMENT, "did you mean 'waiting'"):
        list_(pb.ListRequest(queue="q", states=["waitin"]), timeout=WITHIN)
    with refused(StatusCode.INVALID_ARGUMENT, "is not a cursor"):
        list_(pb.ListRequest(queue="q", cursor="nonsense"), timeout=WITHIN)
    with refused(StatusCode.INVALID_ARGUMENT, "limit=1001"):
        list_(pb.ListRequest(queue="q", limit=1001), timeout=WITHIN)


def _log(server: RunningServer, *lines: str) -> LeaseRef:
    (lease,) = claim(server, "q").leases
    ref = LeaseRef(lease.queue, lease.id, lease.token)
    server.do(server.context.store.note([Note(lease=ref, lines=lines)]))
    return ref


def test_logs_are_streamed_in_order(running_server: RunningServer) -> None:
    submit(running_server, "a")
    _log(running_server, *(f"line {n}" for n in range(250)), "grüezi")
    stream = running_server.jobs.Logs(pb.LogsRequest(queue="q", id="a"), timeout=WITHIN)
    lines = [line for reply in stream for line in reply.lines]
    assert lines == [*(f"line {n}" for n in range(250)), "grüezi"]


def test_followed_logs_go_on_until_the_job_ends(running_server: RunningServer) -> None:
    submit(running_server, "a")
    (lease,) = claim(running_server, "q").leases
    ref = LeaseRef(lease.queue, lease.id, lease.token)
    store = running_server.context.store
    running_server.do(store.note([Note(lease=ref, lines=("begun",))]))
    stream = iter(
        running_server.jobs.Logs(pb.LogsRequest(queue="q", id="a", follow=True), timeout=WITHIN)
    )
    assert list(next(stream).lines) == ["begun"]
    running_server.do(store.note([Note(lease=ref, lines=("half",))]))
    assert list(next(stream).lines) == ["half"]
    outcome = Complete(queue=lease.queue, id=lease.id, token=lease.token)
    running_server.do(store.settle((outcome,), worker="tester", call="end"))
    assert list(stream) == []


# ── changing ──────────────────────────────────────────────────────────────────────────────────────


def test_a_waiting_job_is_cancelled_and_an_active_one_is_asked(
    running_server: RunningServer,
) -> None:
    cancel = running_server.jobs.Cancel
    submit(running_server, "a")
    reply = cancel(pb.CancelRequest(queue="q", id="a", reason="mistake"), timeout=WITHIN)
    assert reply.state == "cancelled"
    job = running_server.jobs.Get(pb.GetRequest(queue="q", id="a"), timeout=WITHIN).job
    assert job.reason == "mistake"
    with refused(StatusCode.FAILED_PRECONDITION, "has ended"):
        cancel(pb.CancelRequest(queue="q", id="a"), timeout=WITHIN)
    submit(running_server, "b")
    claim(running_server, "q")
    assert cancel(pb.CancelRequest(queue="q", id="b"), timeout=WITHIN).state == "active"


def test_an_ended_job_runs_again_and_others_are_too_late(running_server: RunningServer) -> None:
    rerun = running_server.jobs.Rerun
    submit(running_server, "a")
    with refused(StatusCode.FAILED_PRECONDITION, "has not ended"):
        rerun(pb.RerunRequest(queue="q", id="a"), timeout=WITHIN)
    complete(running_server, "q")
    reply = rerun(pb.RerunRequest(queue="q", id="a"), timeout=WITHIN)
    assert (reply.life, reply.state) == (1, "waiting")


def test_a_signal_reaches_its_job(running_server: RunningServer) -> None:
    submit(running_server, "a")
    signal = running_server.jobs.Signal
    signal(pb.SignalRequest(queue="q", id="a", name="approved", value=b"7"), timeout=WITHIN)
    signal(pb.SignalRequest(queue="q", id="a", name="paid"), timeout=WITHIN)
    (lease,) = claim(running_server, "q").leases
    assert lease.signals == (("approved", b"7"), ("paid", b"null"))
    with refused(StatusCode.INVALID_ARGUMENT, "signal="):
        signal(pb.SignalRequest(queue="q", id="a", name="$jobq.x"), timeout=WITHIN)


# ── the server itself ─────────────────────────────────────────────────────────────────────────────


def test_waits_and_streams_end_when_the_server_stops() -> None:
    with running() as server:
        submit(server, "a")
        wait = server.jobs.Wait.future(pb.WaitRequest(queue="q", id="a"), timeout=WITHIN)
        logs = server.jobs.Logs(pb.LogsRequest(queue="q", id="a", follow=True), timeout=WITHIN)
        asked = pb.EventsRequest(queues=[pb.EventsPosition(queue="q", after="0")])
        events = iter(server.jobs.Events(asked, timeout=WITHIN))
        assert next(events).position == "0"  # the stream is there
        assert next(events).events[0].kind == "accepted"
        stopped = threading.Event()

        def stop() -> None:
            server.do(server.host.stop(WITHIN))
            stopped.set()

        threading.Thread(target=stop, daemon=True).start()
        for call in (lambda: wait.result(), lambda: list(logs), lambda: list(events)):
            with refused(StatusCode.UNAVAILABLE, "", "QueueClosed"):
                call()
        assert stopped.wait(WITHIN)


def test_a_bug_is_logged_under_a_number_and_shows_no_trace(
    running_server: RunningServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(*_: object, **__: object) -> object:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(running_server.context.store, "logs", broken)
    submit(running_server, "a")
    call = running_server.jobs.Logs(pb.LogsRequest(queue="q", id="a"), timeout=WITHIN)
    with pytest.raises(grpc.RpcError) as raised:
        list(call)
    error = raised.value
    assert isinstance(error, grpc.Call)
    assert error.code() is StatusCode.INTERNAL
    details = error.details() or ""
    assert "secret" not in details
    number = details.rsplit(" ", 1)[-1]
    assert any(number in record.getMessage() for record in caplog.records)


def test_a_malformed_request_is_an_invalid_argument(running_server: RunningServer) -> None:
    call = running_server.channel.unary_unary("/jobq.v1.JobService/Submit", bytes, bytes)
    with refused(StatusCode.INVALID_ARGUMENT, "cannot be decoded", "InvalidJob"):
        call(b"\xff\xff\xff\xff", timeout=WITHIN)


def test_a_server_in_a_process_keeps_jobs_in_a_file(server_process: ServerProcess) -> None:
    assert submit(server_process, "a") == "a"
    job = server_process.jobs.Get(pb.GetRequest(queue="q", id="a"), timeout=WITHIN).job
    assert job.state == "waiting"
    assert server_process.stop() == 0
