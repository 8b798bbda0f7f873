"""AdminService on a real server."""

from __future__ import annotations

import time
from typing import Any

import pytest
from grpc import StatusCode
from msgspec.structs import replace

from jobq.access.quotas import TenantRules
from jobq.access.schedules import TenantSchedules
from jobq.access.usage import TenantLimits
from jobq.core.records.jobs import QueueName
from jobq.core.records.queues import Limits
from jobq.core.records.states import State
from jobq.core.records.workers import WorkerRecord
from jobq.core.version import __version__
from jobq.rpc.v1 import admin_pb2 as pb
from jobq.rpc.v1 import common_pb2 as common
from jobq.rpc.v1 import jobs_pb2 as jobs_pb
from jobq.server.config import ServerSettings
from tests.server.serving import PATIENCE_S, RunningServer, claim, complete, fail, refused, running
from tests.waiting import wait_until

WITHIN = PATIENCE_S
QUEUE = QueueName("default", "q")


def submit(server: RunningServer, id: str, queue: str = "q", **fields: object) -> None:
    """Submit a job."""
    new = common.NewJob(**{"queue": queue, "name": "n", "id": id, **fields})  # type: ignore[arg-type]
    server.jobs.Submit(jobs_pb.SubmitRequest(job=new), timeout=WITHIN)


# ── queues ────────────────────────────────────────────────────────────────────────────────────────


def create(
    server: RunningServer, queue: str = "q", *, update: bool = False, **config: Any
) -> pb.CreateQueueResponse:
    """Create a queue, or change it."""
    request = pb.CreateQueueRequest(queue=queue, config=pb.QueueConfig(**config), update=update)
    return server.admin.CreateQueue(request, timeout=WITHIN)


def test_a_queue_is_created_once_and_differences_are_refused(running_server: RunningServer) -> None:
    limits = common.Limits(
        limit=5,
        rate=common.Rate(window=common.Window(limit=10, per_ms=1000)),
        key_rate=common.Rate(bucket=common.Bucket(capacity=3, refill=0.5)),
        max_waiting=100,
    )
    first = create(
        running_server,
        mode="keyed",
        limits=limits,
        retention=pb.Retention(completed_ms=5000),
        dead_letters="dead",
        event_meta=["trace"],
        max_retries=7,
        ttl_ms=60_000,
    )
    assert first.created
    assert first.queue.mode == "keyed"
    assert first.queue.limits == limits
    assert first.queue.retention.completed_ms == 5000
    assert (first.queue.dead_letters, list(first.queue.event_meta)) == ("dead", ["trace"])
    assert (first.queue.max_retries, first.queue.ttl_ms) == (7, 60_000)
    again = create(running_server, mode="keyed", limits=limits)
    assert not again.created
    assert again.queue == first.queue
    with refused(StatusCode.ALREADY_EXISTS, "is keyed in the store"):
        create(running_server, mode="plain")
    with refused(StatusCode.ALREADY_EXISTS, "raise limits_version"):
        create(running_server, limits=common.Limits(limit=6))
    assert create(running_server, limits=common.Limits(limit=6), limits_version=2).queue.limits == (
        common.Limits(limit=6)
    )


def test_a_queue_with_other_defaults_is_refused_or_updated(running_server: RunningServer) -> None:
    create(running_server, max_retries=7, ttl_ms=60_000)
    with refused(StatusCode.ALREADY_EXISTS, "max_retries is 7, not 8"):
        create(running_server, max_retries=8)
    kept = create(running_server, max_retries=7).queue
    assert (kept.max_retries, kept.ttl_ms) == (7, 60_000)
    changed = create(running_server, update=True, max_retries=8).queue
    assert (changed.max_retries, changed.ttl_ms) == (8, 60_000)


def test_wrong_declarations_are_invalid(running_server: RunningServer) -> None:
    wrong: dict[str, dict[str, Any]] = {
        "mode": {"mode": "keyd"},
        "limit=0": {"limits": common.Limits(limit=0)},
        "rate is empty": {"limits": common.Limits(rate=common.Rate())},
        "rate.bucket.refill": {
            "limits": common.Limits(rate=common.Rate(bucket=common.Bucket(capacity=1)))
        },
        "partitions=-1": {"partitions": -1},
        "retention.failed_ms": {"retention": pb.Retention(failed_ms=-1)},
        "max_retries=-1": {"max_retries": -1},
        "dead_letters": {"dead_letters": "a{b"},
    }
    for words, config in wrong.items():
        with refused(StatusCode.INVALID_ARGUMENT, words):
            create(running_server, **config)
    with refused(StatusCode.FAILED_PRECONDITION, "needs Valkey"):
        create(running_server, partitions=4)
    listed = running_server.admin.ListQueues(pb.ListQueuesRequest(), timeout=WITHIN)
    assert not listed.queues, "nothing was stored"


def test_queues_are_listed_by_name(running_server: RunningServer) -> None:
    for name in ("b", "a", "c"):
        create(running_server, name)
    listed = running_server.admin.ListQueues(pb.ListQueuesRequest(), timeout=WITHIN)
    assert [each.name for each in listed.queues] == ["a", "b", "c"]
    other = running_server.admin.ListQueues(pb.ListQueuesRequest(tenant="acme"), timeout=WITHIN)
    assert not other.queues


def test_stats_count_jobs_and_minutes(running_server: RunningServer) -> None:
    admin = running_server.admin
    with refused(StatusCode.NOT_FOUND, "no queue 'q'"):
        admin.GetQueueStats(pb.GetQueueStatsRequest(queue="q"), timeout=WITHIN)
    for id in ("a", "b", "c"):
        submit(running_server, id)
    complete(running_server, "q")
    stats = admin.GetQueueStats(pb.GetQueueStatsRequest(queue="q", minutes=5), timeout=WITHIN)
    assert (stats.counts["waiting"], stats.counts["completed"]) == (2, 1)
    assert stats.oldest_waiting_ms >= 0
    assert sum(minute.accepted for minute in stats.minutes) == 3
    assert not stats.HasField("held_until_ms")


def test_a_paused_queue_is_not_claimed_from(running_server: RunningServer) -> None:
    submit(running_server, "a")
    running_server.admin.PauseQueue(pb.PauseQueueRequest(queue="q"), timeout=WITHIN)
    assert not claim(running_server, "q").leases
    running_server.admin.ResumeQueue(pb.ResumeQueueRequest(queue="q"), timeout=WITHIN)
    assert claim(running_server, "q").leases


def test_a_queue_is_cleared_and_removed_in_steps(running_server: RunningServer) -> None:
    admin = running_server.admin
    for id in ("a", "b", "c"):
        submit(running_server, id)
    submit(running_server, "d", delay_ms=60_000)
    reply = admin.ClearQueue(pb.ClearQueueRequest(queue="q", limit=2), timeout=WITHIN)
    assert reply.cancelled == 2
    claim(running_server, "q")
    with refused(StatusCode.FAILED_PRECONDITION, "has 1 active jobs"):
        admin.RemoveQueue(pb.RemoveQueueRequest(queue="q"), timeout=WITHIN)
    for _ in range(10):
        if admin.RemoveQueue(pb.RemoveQueueRequest(queue="q", force=True), timeout=WITHIN).removed:
            break
    assert not admin.ListQueues(pb.ListQueuesRequest(), timeout=WITHIN).queues


# ── limits, holds and locks ───────────────────────────────────────────────────────────────────────


def test_limits_change_and_return(running_server: RunningServer) -> None:
    create(running_server, mode="keyed", limits=common.Limits(limit=5))
    admin = running_server.admin
    admin.SetLimits(
        pb.SetLimitsRequest(queue="q", limits=common.Limits(limit=1, max_waiting=9)), timeout=WITHIN
    )
    admin.SetLimits(
        pb.SetLimitsRequest(queue="q", key="acme", limits=common.Limits(key_limit=3)),
        timeout=WITHIN,
    )
    (queue,) = admin.ListQueues(pb.ListQueuesRequest(), timeout=WITHIN).queues
    assert queue.limits_changed
    assert queue.limits == common.Limits(limit=1, max_waiting=9)
    assert queue.key_limits["acme"].key_limit == 3
    admin.SetLimits(pb.SetLimitsRequest(queue="q"), timeout=WITHIN)
    records = running_server.do(running_server.context.store.queues("default"))
    assert records[0].limits.effective == Limits(limit=5)


def test_holds_begin_are_listed_and_end(running_server: RunningServer) -> None:
    admin = running_server.admin
    create(running_server, mode="keyed")
    with refused(StatusCode.NOT_FOUND, "is not held"):
        admin.ReleaseHold(pb.ReleaseHoldRequest(queue="q"), timeout=WITHIN)
    admin.Hold(pb.HoldRequest(queue="q", hold_ms=60_000), timeout=WITHIN)
    admin.Hold(pb.HoldRequest(queue="q", key="acme", hold_ms=60_000), timeout=WITHIN)
    holds = admin.ListHolds(pb.ListHoldsRequest(queue="q"), timeout=WITHIN)
    assert holds.HasField("until_ms")
    assert list(holds.keys) == ["acme"]
    admin.ReleaseHold(pb.ReleaseHoldRequest(queue="q"), timeout=WITHIN)
    admin.ReleaseHold(pb.ReleaseHoldRequest(queue="q", key="acme"), timeout=WITHIN)
    holds = admin.ListHolds(pb.ListHoldsRequest(queue="q"), timeout=WITHIN)
    assert not holds.HasField("until_ms")
    assert not holds.keys
    with refused(StatusCode.INVALID_ARGUMENT, "hold_ms=0"):
        admin.Hold(pb.HoldRequest(queue="q"), timeout=WITHIN)


def test_a_lock_is_found_and_released(running_server: RunningServer) -> None:
    admin = running_server.admin
    submit(running_server, "a", unique=common.Unique(lock="invoice 7"))
    found = admin.GetLock(pb.GetLockRequest(queue="q", lock="invoice 7"), timeout=WITHIN)
    assert (found.job, found.HasField("until_ms")) == ("a", False)
    with refused(StatusCode.NOT_FOUND, "holds the lock"):
        admin.ReleaseLock(
            pb.ReleaseLockRequest(queue="q", lock="invoice 7", job="b"), timeout=WITHIN
        )
    admin.ReleaseLock(pb.ReleaseLockRequest(queue="q", lock="invoice 7"), timeout=WITHIN)
    with refused(StatusCode.NOT_FOUND, "holds the lock"):
        admin.GetLock(pb.GetLockRequest(queue="q", lock="invoice 7"), timeout=WITHIN)


# ── schedules ─────────────────────────────────────────────────────────────────────────────────────


def test_a_schedule_lives_through_its_calls(running_server: RunningServer) -> None:
    admin = running_server.admin
    job = common.NewJob(name="digest", payload=b"[[1],{}]", priority=3, retry=common.Retry())
    schedule = pb.Schedule(
        queue="q", id="daily", job=job, cron="0 6 * * *", tz="Europe/Zurich", catch_up="one"
    )
    put = admin.PutSchedule(pb.PutScheduleRequest(schedule=schedule), timeout=WITHIN).schedule
    assert put.HasField("next_ms")
    assert (put.schedule.cron, put.schedule.tz, put.schedule.catch_up) == (
        "0 6 * * *",
        "Europe/Zurich",
        "one",
    )
    again = admin.PutSchedule(pb.PutScheduleRequest(schedule=schedule), timeout=WITHIN).schedule
    assert again == put
    every = pb.Schedule(queue="other", id="often", job=common.NewJob(name="n"), every_ms=5_000)
    admin.PutSchedule(pb.PutScheduleRequest(schedule=every), timeout=WITHIN)
    admin.PauseSchedule(pb.PauseScheduleRequest(queue="q", id="daily"), timeout=WITHIN)
    with refused(StatusCode.FAILED_PRECONDITION, "paused already"):
        admin.PauseSchedule(pb.PauseScheduleRequest(queue="q", id="daily"), timeout=WITHIN)
    listed = admin.ListSchedules(pb.ListSchedulesRequest(), timeout=WITHIN).schedules
    assert {each.schedule.id: each.paused for each in listed} == {"daily": True, "often": False}
    assert {each.schedule.job.payload for each in listed} == {b"[[1],{}]", b"[[],{}]"}
    admin.ResumeSchedule(pb.ResumeScheduleRequest(queue="q", id="daily"), timeout=WITHIN)
    admin.RemoveSchedule(pb.RemoveScheduleRequest(queue="q", id="daily"), timeout=WITHIN)
    with refused(StatusCode.NOT_FOUND, "no schedule 'daily'"):
        admin.RemoveSchedule(pb.RemoveScheduleRequest(queue="q", id="daily"), timeout=WITHIN)
    with refused(StatusCode.NOT_FOUND, "no schedule 'daily'"):
        admin.ResumeSchedule(pb.ResumeScheduleRequest(queue="q", id="daily"), timeout=WITHIN)


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        ("`cron` or `every_ms`", pb.Schedule(queue="q", id="a")),
        ("`cron` or `every_ms`", pb.Schedule(queue="q", id="a", cron="* * * * *", every_ms=5)),
        ("cron", pb.Schedule(queue="q", id="a", cron="nonsense")),
        ("tz=", pb.Schedule(queue="q", id="a", cron="* * * * *", tz="Mars/Base")),
        ("every_ms=-1", pb.Schedule(queue="q", id="a", every_ms=-1)),
        ("schedule id", pb.Schedule(queue="q", every_ms=1)),
        ("end", pb.Schedule(queue="q", id="a", every_ms=1, start_ms=10, end_ms=5)),
        ("catch_up", pb.Schedule(queue="q", id="a", every_ms=1, catch_up="never")),
        ("name", pb.Schedule(queue="q", id="a", every_ms=1)),
    ],
)
def test_wrong_schedules_are_invalid(
    running_server: RunningServer, words: str, wrong: pb.Schedule
) -> None:
    with refused(StatusCode.INVALID_ARGUMENT, words):
        running_server.admin.PutSchedule(pb.PutScheduleRequest(schedule=wrong), timeout=WITHIN)


def test_a_flood_of_a_schedule_stays_within_the_quota() -> None:
    """It stored 87,189 jobs in 30 s."""
    settings = ServerSettings(
        grpc_port=0, tenants=TenantRules(TenantLimits(max_waiting=10, submit_rate=5))
    )
    job = common.NewJob(name="n", payload=b"x" * 20_000)
    flood = pb.Schedule(queue="q", id="s", job=job, every_ms=1, catch_up="all")
    with running(settings=settings) as server:
        with refused(StatusCode.INVALID_ARGUMENT, "less than 1 s apart"):
            server.admin.PutSchedule(pb.PutScheduleRequest(schedule=flood), timeout=WITHIN)
        flood.every_ms, flood.start_ms = 1_000, 1
        server.admin.PutSchedule(pb.PutScheduleRequest(schedule=flood), timeout=WITHIN)
        store = server.context.store
        (record,) = server.do(store.list_schedules(QUEUE))
        # As a schedule that was stored before there was a limit, or that was paused for an hour.
        spec = replace(record.spec, every_ms=1, start_ms=None)
        past = int(time.time() * 1000) - 3_600_000
        server.do(store.put_schedule(spec, next_ms=past))
        wait_until(lambda: server.do(store.count(QUEUE)).get(State.WAITING) == 10, "a full quota")
        schedules = TenantSchedules(store, settings.tenants, server.context.clock)
        assert server.do(schedules.list_schedules(due=True)) == []
        assert server.do(store.count(QUEUE))[State.WAITING] == 10


# ── workers, dead letters, readers ────────────────────────────────────────────────────────────────


def test_workers_are_listed_and_receive_requests(running_server: RunningServer) -> None:
    admin, store = running_server.admin, running_server.context.store
    record = WorkerRecord(name="w", host="here", pid=7, queues=(QUEUE,), concurrency=3)
    running_server.do(store.beat(record, ttl_ms=60_000))
    (worker,) = admin.ListWorkers(pb.ListWorkersRequest(queue="q"), timeout=WITHIN).workers
    assert (worker.name, worker.host, worker.pid, list(worker.queues)) == ("w", "here", 7, ["q"])
    assert not admin.ListWorkers(pb.ListWorkersRequest(tenant="acme"), timeout=WITHIN).workers

    def asked() -> str | None:
        return running_server.do(store.beat(record, ttl_ms=60_000)).request

    admin.DrainWorker(pb.DrainWorkerRequest(worker="w"), timeout=WITHIN)
    assert asked() == "drain"
    admin.ResumeWorker(pb.ResumeWorkerRequest(worker="w"), timeout=WITHIN)
    assert asked() == "resume"
    admin.ShutdownWorker(pb.ShutdownWorkerRequest(worker="w"), timeout=WITHIN)
    assert asked() == "shutdown"
    admin.ShutdownWorker(pb.ShutdownWorkerRequest(worker="w", now=True), timeout=WITHIN)
    assert asked() == "shutdown-now"
    with refused(StatusCode.NOT_FOUND, "no worker 'x'"):
        admin.DrainWorker(pb.DrainWorkerRequest(worker="x"), timeout=WITHIN)


def test_dead_letters_are_listed_rerun_and_purged(running_server: RunningServer) -> None:
    admin = running_server.admin
    for n in range(5):
        submit(running_server, f"j{n}")
        fail(running_server, "q", "timeout" if n % 2 else "no such invoice")
    every = admin.ListDeadLetters(pb.ListDeadLettersRequest(queue="q"), timeout=WITHIN)
    assert sorted(job.id for job in every.jobs) == [f"j{n}" for n in range(5)]
    some = admin.ListDeadLetters(
        pb.ListDeadLettersRequest(queue="q", error="*: timeout"), timeout=WITHIN
    )
    assert sorted(job.id for job in some.jobs) == ["j1", "j3"]
    rerun, cursor = 0, ""
    while True:
        reply = admin.RerunDeadLetters(
            pb.RerunDeadLettersRequest(queue="q", error="*: timeout", limit=1, cursor=cursor),
            timeout=WITHIN,
        )
        rerun += reply.rerun
        if not (cursor := reply.cursor):
            break
    assert rerun == 2
    purged = admin.PurgeDeadLetters(
        pb.PurgeDeadLettersRequest(queue="q", older_than_ms=86_400_000), timeout=WITHIN
    )
    assert purged.removed == 0
    purged = admin.PurgeDeadLetters(pb.PurgeDeadLettersRequest(queue="q"), timeout=WITHIN)
    assert purged.removed == 3


def test_readers_are_listed_and_removed(running_server: RunningServer) -> None:
    admin = running_server.admin
    submit(running_server, "a")
    running_server.do(running_server.context.store.ack_events(QUEUE, "relay", "0"))
    readers = admin.ListReaders(pb.ListReadersRequest(queue="q"), timeout=WITHIN).readers
    assert dict(readers) == {"relay": "0"}
    admin.RemoveReader(pb.RemoveReaderRequest(queue="q", reader="relay"), timeout=WITHIN)
    with refused(StatusCode.NOT_FOUND, "no reader 'relay'"):
        admin.RemoveReader(pb.RemoveReaderRequest(queue="q", reader="relay"), timeout=WITHIN)


# ── the server ────────────────────────────────────────────────────────────────────────────────────


def test_tenants_show_what_they_use_and_may_use() -> None:
    limits = TenantLimits(max_waiting=50, max_active=7, max_stored=90, submit_rate=3.5)
    rules = TenantRules(tenants={"acme": limits})
    settings = ServerSettings(grpc_port=0, tenants=rules)
    with running(settings=settings) as server:
        new = common.NewJob(queue="q", name="n", delay_ms=60_000)
        for tenant in ("acme", "acme", "other"):
            server.jobs.Submit(jobs_pb.SubmitRequest(job=new, tenant=tenant), timeout=WITHIN)
        every = pb.Schedule(queue="q", id="s", job=common.NewJob(name="n"), every_ms=60_000)
        server.admin.PutSchedule(
            pb.PutScheduleRequest(schedule=every, tenant="acme"), timeout=WITHIN
        )
        listed = server.admin.ListTenants(pb.ListTenantsRequest(), timeout=WITHIN).tenants
        assert [each.tenant for each in listed] == ["acme", "other"]
        acme = listed[0]
        assert (acme.queues, acme.waiting_jobs, acme.schedules) == (1, 2, 1)
        assert (acme.active_jobs, acme.ended_jobs, acme.min_interval_ms) == (0, 0, 1000)
        assert (acme.max_waiting_jobs, acme.submit_rate) == (50, 3.5)
        assert (acme.max_active_jobs, acme.max_stored_jobs) == (7, 90)
        assert not acme.HasField("max_queues")
        assert not listed[1].HasField("max_waiting_jobs")


def test_status_and_version(running_server: RunningServer) -> None:
    submit(running_server, "a")
    submit(running_server, "b", queue="other")
    status = running_server.admin.GetStatus(pb.GetStatusRequest(), timeout=WITHIN)
    assert (status.store, status.queues, status.counts["waiting"]) == ("memory", 2, 2)
    assert status.version == __version__
    assert status.now_ms > 0
    assert list(status.scopes) == ["admin", "produce", "read", "work"]
    version = running_server.admin.GetVersion(pb.GetVersionRequest(), timeout=WITHIN)
    assert (version.version, version.api) == (__version__, "jobq.v1")
