"""Job streams: jobs arrive at once, within the worker's credit, and end as the worker reports."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from jobq.core.records.commands import Cancel
from jobq.core.records.jobs import JobKey, JobSpec, LeaseRef, Note
from jobq.core.records.queues import JobDefaults, QueueConfig
from jobq.core.rules.deferral import sentence
from jobq.errors import ConfigError, InvalidJob, StoreUnavailable
from jobq.rpc import convert
from jobq.rpc.v1 import workers_pb2 as pb
from jobq.testing import FakeWorker
from jobq.testing.fake_worker import ref
from tests.server.worker_kit import QUEUE, SHORT_MS, ids, serving
from tests.waiting import nothing_happens, until


async def test_a_job_arrives_is_run_and_completes() -> None:
    async with serving() as place, FakeWorker(place.address, ["mail"]) as worker:
        await place.put("a", key=None, meta={"trace": "t1"})
        job = await worker.job()
        assert (job.id, job.name, job.payload, job.attempt) == ("a", "send", b"[[],{}]", 1)
        assert dict(job.meta) == {"trace": "t1"}
        assert (await place.get("a")).worker == worker.name
        assert await worker.complete(job, {"sent": True})
        record = await place.get("a")
        assert (record.state, record.result) == ("completed", b'{"sent": true}')


async def test_jobs_of_a_queue_without_a_worker_wait_for_one() -> None:
    async with serving() as place:
        await place.put("a")
        async with FakeWorker(place.address, ["mail"]) as worker:
            assert (await worker.job()).id == "a"


async def test_the_server_claims_no_more_jobs_than_the_worker_has_credit_for() -> None:
    async with serving() as place:
        await place.put("a", "b", "c", "d")
        async with FakeWorker(place.address, ["mail"], concurrency=2) as worker:
            first, second = await worker.job(), await worker.job()
            await nothing_happens(0.2, "a third job would be active")
            assert await place.states("a", "b", "c", "d") == [
                "active",
                "active",
                "waiting",
                "waiting",
            ]
            await worker.complete(first)
            assert (await worker.job()).id == "c"
            await worker.complete(second)
            assert (await worker.job()).id == "d"
            assert worker.arrived() == 0


async def test_a_stream_without_credit_gets_nothing_until_it_grants_some() -> None:
    async with serving() as place, FakeWorker(place.address, ["mail"]) as worker:
        await worker.break_stream()
        await worker.open_stream(credit=0)
        await place.put("a")
        await nothing_happens(0.2, "the job would be active")
        assert await place.states("a") == ["waiting"]
        worker.grant(1)
        assert (await worker.job()).id == "a"


async def test_one_job_wakes_one_of_many_workers() -> None:
    async with serving() as place:
        workers = [FakeWorker(place.address, ["mail"], name=f"w{n}") for n in range(5)]
        for worker in workers:
            await worker.__aenter__()
        await nothing_happens(0.1, "the streams fall asleep")
        await place.put("a")
        await until(lambda: sum(worker.arrived() for worker in workers) == 1, "the job")
        for worker in workers:
            await worker.__aexit__(None, None, None)


async def test_a_failed_run_is_retried_as_the_policy_of_the_job_says() -> None:
    from jobq.core.records.jobs import RetryData

    async with serving() as place, FakeWorker(place.address, ["mail"]) as worker:
        await place.put("a", retry=RetryData(max_retries=1, base_ms=0))
        await worker.fail(
            await worker.job(), "no route to host", type="IOError", traceback="at send (mail.go:7)"
        )
        again = await worker.job()
        assert (again.attempt, again.failures) == (2, 1)
        await worker.fail(again, "still none", type="IOError")
        record = await place.get("a")
        assert record.state == "failed"
        assert record.failure is not None
        assert (record.failure.type, record.failure.message) == ("IOError", "still none")
        assert record.failure.exhausted
        assert record.errors[0].traceback == "at send (mail.go:7)"
        assert record.errors[0].worker == worker.name


async def test_the_worker_may_give_a_policy_for_jobs_without_one() -> None:
    from jobq.rpc.v1 import common_pb2 as common

    async with serving() as place, FakeWorker(place.address, ["mail"]) as worker:
        await place.put("a")
        await worker.fail(await worker.job(), retry=common.Retry(max_retries=0))
        assert await place.states("a") == ["failed"]


async def test_the_server_has_a_policy_for_jobs_and_workers_without_one() -> None:
    async with serving() as place, FakeWorker(place.address, ["mail"]) as worker:
        await place.put("a")
        await worker.fail(await worker.job())
        record = await place.get("a")
        assert (record.state, record.failures) == ("delayed", 1)


async def test_the_default_of_a_queue_applies_to_jobs_and_workers_without_a_policy() -> None:
    async with serving() as place, FakeWorker(place.address, ["mail"]) as worker:
        await place.store.declare(QUEUE, QueueConfig(defaults=JobDefaults(max_retries=0)))
        await place.put("a")
        await worker.fail(await worker.job())
        assert await place.states("a") == ["failed"]


async def test_a_rejected_run_fails_its_job_at_once() -> None:
    async with serving() as place, FakeWorker(place.address, ["mail"]) as worker:
        await place.put("a")
        await worker.fail(await worker.job(), "no such tenant", type="Refused", rejected=True)
        failure = (await place.get("a")).failure
        assert failure is not None
        assert (failure.reason, failure.type) == ("rejected", "Refused")


@pytest.mark.parametrize("reason", ["timeout", "crashed"])
async def test_a_failure_has_the_reason_that_the_worker_gives(reason: str) -> None:
    async with serving() as place, FakeWorker(place.address, ["mail"]) as worker:
        await place.put("a")
        await worker.fail(await worker.job(), reason=reason)
        failure = (await place.get("a")).failure
        assert failure is not None
        assert failure.reason == reason


async def test_a_worker_may_choose_when_a_failed_job_runs_again() -> None:
    async with serving() as place, FakeWorker(place.address, ["mail"]) as worker:
        await place.put("a")
        await worker.fail(await worker.job(), "busy", type="Busy", retry_in_ms=0)
        again = await worker.job()
        assert again.failures == 1
        failure = (await place.get("a")).failure
        assert failure is not None
        assert (failure.type, failure.message) == ("Busy", "busy")


async def test_a_snoozed_job_keeps_what_it_saved() -> None:
    async with serving() as place, FakeWorker(place.address, ["mail"]) as worker:
        await place.put("a")
        for saved in (b'"page 7"', None):
            job = await worker.job()
            snoozed = pb.Snoozed(delay_ms=1, saved=saved)
            await worker.report(pb.Result(lease=ref(job), snoozed=snoozed))
        job = await worker.job()
        assert (job.saved, job.failures, job.attempt) == (b'"page 7"', 0, 3)


async def test_a_rate_limited_job_holds_its_queue() -> None:
    async with serving() as place, FakeWorker(place.address, ["mail"]) as worker:
        await place.put("a")
        job = await worker.job()
        limited = pb.RateLimited(delay_ms=60_000)
        await worker.report(pb.Result(lease=ref(job), rate_limited=limited))
        assert (await place.store.holds(QUEUE)).until_ms is not None
        assert (await place.get("a")).failures == 0


async def test_a_job_whose_task_the_worker_does_not_know_waits_for_another_worker() -> None:
    async with serving() as place, FakeWorker(place.address, ["mail"]) as worker:
        await place.put("a")
        job = await worker.job()
        assert not job.HasField("unknown_ms")
        await worker.report(pb.Result(lease=ref(job), unknown=pb.Unknown()))
        record = await place.get("a")
        assert (record.state, record.failures) == ("delayed", 0)
        again = await worker.job()
        assert again.unknown_ms > 0


async def test_a_job_whose_arguments_do_not_fit_waits_for_another_worker() -> None:
    async with serving() as place, FakeWorker(place.address, ["mail"]) as worker:
        await place.put("a")
        job = await worker.job()
        assert not job.HasField("unfit_ms")
        unfit = pb.Unfit(message="mail: there is no parameter to")
        await worker.report(pb.Result(lease=ref(job), unfit=unfit))
        record = await place.get("a")
        assert (record.state, record.failures) == ("delayed", 0)
        assert unfit.message in (sentence(record) or "")
        assert unfit.message in convert.job(record).deferred
        again = await worker.job()
        assert again.unfit_ms >= job.started_ms
        # The server knows since when: the worker need not say so.
        await worker.report(pb.Result(lease=ref(again), unfit=unfit))
        after = (await place.get("a")).deferred
        assert after is not None
        assert (after.unfit_ms, after.attempt) == (again.unfit_ms, 2)


async def test_progress_and_log_lines_are_stored() -> None:
    async with serving() as place, FakeWorker(place.address, ["mail"]) as worker:
        await place.put("a")
        job = await worker.job()
        note = pb.JobNote(lease=ref(job), progress=b"0.5", lines=["half"], saved=b"7")
        reply = await worker.stub.Note(pb.NoteRequest(worker=worker.name, notes=[note]))
        assert [state.state for state in reply.states] == ["held"]
        assert ((await place.get("a")).progress, (await place.get("a")).saved) == (b"0.5", b"7")
        assert await place.store.logs(JobKey(QUEUE, "a")) == ["half"]


async def test_a_checkpoint_that_comes_late_replaces_no_newer_one() -> None:
    async with serving() as place, FakeWorker(place.address, ["mail"]) as worker:
        await place.put("a")
        job = await worker.job()
        for number in (1, 3, 2):
            note = pb.JobNote(lease=ref(job), saved=b"%d" % number, saved_number=number)
            await worker.stub.Note(pb.NoteRequest(worker=worker.name, notes=[note]))
        assert (await place.get("a")).saved == b"3"
        old = pb.Snoozed(delay_ms=1, saved=b"2", saved_number=2)
        await worker.report(pb.Result(lease=ref(job), snoozed=old))
        assert (await worker.job()).saved == b"3"


@pytest.mark.parametrize("how", ["snoozed", "released"])
async def test_a_checkpoint_without_a_number_stays_if_it_comes_while_the_job_is_put_off(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker names no checkpoint, so what was saved last is kept, whether or not it counts."""
    async with serving() as place, FakeWorker(place.address, ["mail"]) as worker:
        await place.put("a")
        job = await worker.job()
        lease = ref(job)
        note = pb.JobNote(lease=lease, saved=b"old")
        await worker.stub.Note(pb.NoteRequest(worker=worker.name, notes=[note]))
        settle = place.store.settle

        async def held_up(outcomes: Any, **options: Any) -> Any:
            if outcomes:
                newer = LeaseRef(QUEUE, job.id, job.token)
                assert await place.store.note([Note(lease=newer, saved=b"new")]) == ["held"]
            return await settle(outcomes, **options)

        monkeypatch.setattr(place.store, "settle", held_up)
        if how == "snoozed":
            await worker.report(pb.Result(lease=lease, snoozed=pb.Snoozed(delay_ms=1)))
        else:
            release = pb.ReleaseRequest(worker=worker.name, leases=[lease], delay_ms=1)
            await worker.stub.Release(release)
        assert (await place.get("a")).saved == b"new"


async def test_a_repeated_report_is_applied_once_and_replies_the_same() -> None:
    async with serving() as place, FakeWorker(place.address, ["mail"]) as worker:
        await place.put("a", "b")
        job = await worker.job()
        failed = pb.Result(lease=ref(job), failed=pb.Failed(message="x", retry_in_ms=60_000))
        assert await worker.report(failed, call="r1")
        assert (await worker.job()).id == "b"  # the stream has made a call of its own meanwhile
        assert await worker.report(failed, call="r1")
        assert (await place.get("a")).failures == 1
        assert not await worker.report(failed, call="r2")


async def test_a_batch_of_reports_names_those_that_came_too_late() -> None:
    async with serving() as place, FakeWorker(place.address, ["mail"], concurrency=2) as worker:
        await place.put("a", "b")
        jobs = [await worker.job(), await worker.job()]
        await worker.complete(jobs[0])
        results = [pb.Result(lease=ref(job), completed=pb.Completed()) for job in jobs]
        reply = await worker.stub.Report(pb.ReportRequest(worker=worker.name, results=results))
        assert [lease.id for lease in reply.stale] == ["a"]
        assert await place.states("a", "b") == ["completed", "completed"]


async def test_a_released_job_costs_neither_a_retry_nor_a_stall() -> None:
    async with serving() as place, FakeWorker(place.address, ["mail"]) as worker:
        await place.put("a")
        await worker.release(await worker.job())
        again = await worker.job()
        assert (again.attempt, again.failures, again.stalls) == (2, 0, 0)


async def test_a_job_released_with_a_delay_waits_and_keeps_its_checkpoint() -> None:
    async with serving() as place, FakeWorker(place.address, ["mail"]) as worker:
        await place.put("a")
        job = await worker.job()
        note = pb.JobNote(lease=ref(job), saved=b"7")
        await worker.stub.Note(pb.NoteRequest(worker=worker.name, notes=[note]))
        await worker.release(job, delay_ms=60_000)
        record = await place.get("a")
        assert (record.state, record.failures, record.saved) == ("delayed", 0, b"7")


async def test_a_cancel_reaches_the_worker_at_once() -> None:
    async with serving() as place, FakeWorker(place.address, ["mail"]) as worker:
        await place.put("a")
        job = await worker.job()
        await place.store.alter([Cancel(job=JobKey(QUEUE, "a"))])
        await worker.changed(timeout=3)
        assert worker.cancelled == ["a"]
        await worker.fail(job, "stopped")
        assert await place.states("a") == ["cancelled"]


async def test_a_heartbeat_names_cancelled_and_lost_jobs() -> None:
    async with (
        serving() as place,
        FakeWorker(place.address, ["mail"], concurrency=3, heartbeats=False) as worker,
    ):
        await place.put("a", "b", "c")
        jobs = {job.id: job for job in [await worker.job() for _ in range(3)]}
        await place.store.alter([Cancel(job=JobKey(QUEUE, "a"))])
        await worker.complete(jobs["b"])
        worker.running["b"] = jobs["b"]
        reply = await worker.heartbeat()
        assert {each.lease.id: each.state for each in reply.changed} == {"a": "cancel", "b": "lost"}


async def test_heartbeats_keep_a_job_that_outlasts_its_lease() -> None:
    async with (
        serving(lease_ms=SHORT_MS, upkeep=True) as place,
        FakeWorker(place.address, ["mail"]) as worker,
    ):
        await place.put("a")
        job = await worker.job()
        await nothing_happens(2 * SHORT_MS / 1000, "the job would stall")
        await place.store.tick()
        assert await worker.complete(job)
        assert await place.kinds("a") == ["accepted", "started", "completed"]


async def test_a_stream_says_that_it_is_alive() -> None:
    async with (
        serving(lease_ms=SHORT_MS) as place,
        FakeWorker(place.address, ["mail"]) as worker,
    ):
        await until(lambda: worker.alive >= 3, "messages without a field")


async def test_a_worker_that_answers_nothing_loses_its_stream() -> None:
    async with serving(lease_ms=SHORT_MS) as place, FakeWorker(place.address, ["mail"]) as worker:
        worker._take = lambda message: None  # type: ignore[method-assign]
        with pytest.raises(StoreUnavailable, match="sent nothing for"):
            await worker.job()


async def test_a_new_stream_of_a_worker_ends_the_one_before() -> None:
    async with serving() as place, FakeWorker(place.address, ["mail"]) as worker:
        await worker.open_stream()
        with pytest.raises(StoreUnavailable, match="has opened another stream"):
            await worker.job()
        await place.put("a")
        assert (await worker.job()).id == "a"


async def test_a_name_belongs_to_one_live_worker() -> None:
    async with serving() as place, FakeWorker(place.address, ["mail"], name="w1"):
        with pytest.raises(ConfigError, match="a worker named 'w1' is alive"):
            await FakeWorker(place.address, ["mail"], name="w1").register()
        second = FakeWorker(place.address, ["mail"], name="w1", displace=True)
        await second.register()
        await second.heartbeat()


async def test_a_worker_whose_name_was_taken_learns_so_with_its_next_heartbeat() -> None:
    async with (
        serving() as place,
        FakeWorker(place.address, ["mail"], name="w1", heartbeats=False) as first,
        FakeWorker(place.address, ["mail"], name="w1", displace=True),
    ):
        with pytest.raises(ConfigError, match="another worker has taken the name"):
            await first.heartbeat()


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        (pb.RegisterRequest(), "queues is empty"),
        (pb.RegisterRequest(queues=["a{b"]), "braces are not allowed"),
        (pb.RegisterRequest(queues=["a"], concurrency=-1), "concurrency=-1 is out of range"),
        (pb.RegisterRequest(queues=["a"], worker="x" * 200), "too long"),
        (pb.RegisterRequest(queues=["a"], session="?"), "session is not one that Register"),
    ],
)
async def test_a_wrong_registration_is_refused(request_: pb.RegisterRequest, says: str) -> None:
    async with serving() as place, FakeWorker(place.address, ["mail"]) as worker:
        with pytest.raises(InvalidJob, match=says):
            await worker._ask(worker.stub.Register(request_))


async def test_a_stream_that_does_not_open_with_a_session_is_refused() -> None:
    async with serving() as place, FakeWorker(place.address, ["mail"]) as worker:
        await worker.break_stream()
        worker.session = ""
        with pytest.raises(InvalidJob, match="session is not one"):
            await worker.open_stream()


async def test_wrong_messages_on_a_stream_end_it_with_a_reason() -> None:
    async with serving() as place, FakeWorker(place.address, ["mail"]) as worker:
        worker.grant(-1)
        with pytest.raises(InvalidJob, match="credit=-1 is out of range"):
            await worker.job()


async def test_a_claim_takes_jobs_with_a_lease_time_of_its_own() -> None:
    async with serving() as place:
        await place.put("a", "b", "c")
        other = FakeWorker(place.address, ["mail"], name="once")
        a, b = await other.claim(2, lease_ms=60_000, call="c1")
        assert a.expires_ms - a.started_ms == 60_000
        assert ids(await other.claim(2, lease_ms=60_000, call="c1")) == [a.id, b.id]
        assert await other.complete(a)
        assert await place.states("a", "b", "c") == ["completed", "active", "waiting"]


async def test_a_claim_waits_for_a_job() -> None:
    async with serving() as place:
        other = FakeWorker(place.address, ["mail"], name="once")
        assert await other.claim(wait_ms=50) == []
        waiting = asyncio.create_task(other.claim(wait_ms=9_000))
        await nothing_happens(0.1, "the claim would return")
        assert not waiting.done()
        await place.put("a")
        assert ids(await asyncio.wait_for(waiting, 3)) == ["a"]


async def test_a_lease_of_a_claim_can_be_extended() -> None:
    async with serving() as place:
        await place.put("a")
        other = FakeWorker(place.address, ["mail"], name="once")
        (job,) = await other.claim(lease_ms=1_000)
        lost = pb.LeaseRef(queue="mail", id="a", token="forged")
        request = pb.ExtendRequest(leases=[ref(job), lost], lease_ms=60_000)
        reply = await other.stub.Extend(request)
        assert [each.state for each in reply.states] == ["held", "lost"]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"queues": []}, "queues is empty"),
        ({"lease_ms": 5}, "lease_ms=5 is out of range"),
        ({"wait_ms": 10**9}, "wait_ms=1000000000 is out of range"),
        ({"limit": 5_000}, "limit=5000 is out of range"),
        ({"call": "a\nb"}, "control characters"),
    ],
)
async def test_a_wrong_claim_is_refused(fields: dict[str, Any], says: str) -> None:
    async with serving() as place:
        with pytest.raises(InvalidJob, match=says):
            await FakeWorker(place.address, ["mail"]).claim(**fields)


async def test_a_worker_that_leaves_is_no_longer_listed() -> None:
    async with serving() as place:
        async with FakeWorker(place.address, ["mail"], name="w1", concurrency=3):
            (record,) = await place.store.workers()
            assert (record.name, record.concurrency, record.queues) == ("w1", 3, (QUEUE,))
        assert await place.store.workers() == []


async def test_an_operator_drains_resumes_and_stops_a_worker() -> None:
    async with (
        serving(lease_ms=SHORT_MS) as place,
        FakeWorker(place.address, ["mail"], name="w1") as worker,
    ):
        await place.store.ask_worker("w1", "drain")
        await worker.changed()
        assert worker.requests == ["drain"]
        assert (await place.store.workers())[0].draining
        await place.put("a")
        await nothing_happens(0.2, "the job would be active")
        assert await place.states("a") == ["waiting"]
        await place.store.ask_worker("w1", "resume")
        assert (await worker.job()).id == "a"
        await place.store.ask_worker("w1", "shutdown")
        await until(lambda: worker.requests == ["drain", "resume", "shutdown"], "the request")


async def test_a_drained_worker_that_reconnects_still_gets_nothing() -> None:
    async with serving() as place, FakeWorker(place.address, ["mail"], name="w1") as worker:
        await place.store.ask_worker("w1", "drain")
        await worker.break_stream()
        await worker.open_stream()
        await place.put("a")
        await nothing_happens(0.2, "the job would be active")
        assert await place.states("a") == ["waiting"]


async def test_a_paused_worker_gets_nothing() -> None:
    async with (
        serving() as place,
        FakeWorker(place.address, ["mail"], heartbeats=False) as worker,
    ):
        await worker.heartbeat(paused=True)
        await place.put("a")
        await nothing_happens(0.2, "the job would be active")
        assert await place.states("a") == ["waiting"]
        await worker.heartbeat()
        assert (await worker.job()).id == "a"


async def test_a_report_does_not_end_the_sleep_of_its_stream() -> None:
    async with serving() as place, FakeWorker(place.address, ["mail"], concurrency=2) as worker:
        await place.put("a")
        job = await worker.job()
        worker.running.clear()  # so that the report gives no credit back
        await worker.complete(job)
        await nothing_happens(0.1, "the stream falls asleep again")
        await place.put("b")
        assert (await worker.job(timeout=2)).id == "b"


async def test_queues_take_turns() -> None:
    from jobq.core.records.jobs import QueueName

    async with serving() as place:
        other = QueueName("default", "other")
        await place.put(*(f"m{n}" for n in range(4)))
        await place.store.put(
            [JobSpec(queue=other, id=f"o{n}", name="send", payload=b"[[],{}]") for n in range(4)]
        )
        async with FakeWorker(place.address, ["mail", "other"]) as worker:
            order = []
            for _ in range(4):
                job = await worker.job()
                order.append(job.queue)
                await worker.complete(job)
        assert set(order) == {"mail", "other"}


async def test_many_jobs_pass_through_a_stream() -> None:
    async with serving() as place, FakeWorker(place.address, ["mail"], concurrency=50) as worker:
        await place.put(*(f"j{n}" for n in range(500)))

        async def run() -> None:
            await worker.complete(await worker.job())

        await asyncio.gather(*(run() for _ in range(500)))
        assert (await place.store.count(QUEUE))["completed"] == 500  # type: ignore[index]


def large(count: int) -> list[JobSpec]:
    """Jobs of 1.5 MB each. gRPC's clients refuse messages of more than 4 MiB by default."""
    payload = b'["' + b"x" * 1_500_000 + b'"]'
    return [JobSpec(queue=QUEUE, id=f"j{n}", name="send", payload=payload) for n in range(count)]


async def test_large_jobs_come_in_messages_that_clients_accept() -> None:
    async with serving() as place, FakeWorker(place.address, ["mail"], concurrency=8) as worker:
        await place.store.put(large(8))
        assert ids([await worker.job() for _ in range(8)]) == [f"j{n}" for n in range(8)]


async def test_a_claim_of_large_jobs_releases_what_does_not_fit() -> None:
    async with serving() as place:
        await place.store.put(large(4))
        assert ids(await FakeWorker(place.address, ["mail"]).claim(4)) == ["j0"]
        assert await place.states("j0", "j1", "j2", "j3") == ["active"] + 3 * ["waiting"]
