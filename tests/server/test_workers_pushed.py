"""Jobs that were pushed and never confirmed: which of them the server releases, and when."""

from __future__ import annotations

from jobq.core.records.jobs import LeaseRef, QueueName
from jobq.server.pushed import MARGIN_S, Push, Pushed, Worker, is_unheard

WORKER = Worker("acme", "w1")
OTHER = Worker("other", "w1")


def ref(id: str) -> LeaseRef:
    return LeaseRef(QueueName("acme", "mail"), id, f"token of {id}")


def pushed(*ids: str, worker: Worker = WORKER, lease_s: float = 15.0) -> Pushed:
    made = Pushed()
    leases = [(ref(id), 1_000) for id in ids]
    made.push(worker, leases, incarnation="i", now=0.0, lease_s=lease_s)
    return made


def test_a_worker_that_reconnects_keeps_the_jobs_it_names() -> None:
    jobs = pushed("a", "b", "c")
    assert jobs.reconnect(WORKER, {ref("b")}) == [ref("a"), ref("c")]
    assert jobs.count(WORKER) == 0


def test_a_confirmed_job_is_not_released() -> None:
    jobs = pushed("a", "b")
    jobs.confirm(WORKER, [ref("a")])
    assert jobs.reconnect(WORKER, ()) == [ref("b")]


def test_a_process_that_leaves_takes_no_jobs_of_the_one_that_has_its_name_now() -> None:
    jobs = pushed("a")
    jobs.push(WORKER, [(ref("b"), 1_000)], incarnation="next", now=0.0, lease_s=15.0)
    assert jobs.leave(WORKER, "i") == [ref("a")]
    assert jobs.reconnect(WORKER, ()) == [ref("b")]


def test_a_worker_of_the_same_name_in_another_tenant_changes_nothing() -> None:
    jobs = pushed("a")
    jobs.confirm(OTHER, [ref("a")])
    assert jobs.reconnect(OTHER, ()) == []
    assert jobs.count(WORKER) == 1


def test_a_job_is_due_just_before_its_lease_ends() -> None:
    jobs = pushed("a")
    assert jobs.next_due() == 15.0 - MARGIN_S
    assert jobs.due(13.9) == {}
    assert [push.lease for push in jobs.due(14.0)[WORKER]] == [ref("a")]
    assert jobs.due(14.0) == {}
    assert jobs.next_due() is None


def test_the_margin_of_a_short_lease_is_a_quarter_of_it() -> None:
    assert pushed("a", lease_s=1.0).next_due() == 0.75


PUSH = Push(ref("a"), "i", started_ms=1_000, at=0.0, due=14.0)


def test_a_job_of_a_worker_that_is_gone_is_released() -> None:
    assert is_unheard(PUSH, heard_here=None, seen_ms=None, lease_s=15)
    assert is_unheard(PUSH, heard_here=None, seen_ms=1_000, lease_s=15)


def test_a_job_of_a_worker_that_another_server_hears_is_left_alone() -> None:
    assert not is_unheard(PUSH, heard_here=None, seen_ms=1_001, lease_s=15)


def test_a_job_that_heartbeats_do_not_name_is_released() -> None:
    assert is_unheard(PUSH, heard_here=6.0, seen_ms=9_000, lease_s=15)


def test_a_heartbeat_that_may_be_older_than_the_push_proves_nothing() -> None:
    assert not is_unheard(PUSH, heard_here=1.0, seen_ms=9_000, lease_s=15)
