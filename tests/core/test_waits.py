"""What a run that begins again finds of the passes before it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from jobq.core.control import WaitForChildren, WaitForSignal
from jobq.core.records.jobs import (
    Edge,
    Failure,
    Input,
    JobKey,
    Lease,
    QueueName,
)
from jobq.core.rules.waits import Children, Inbox, child_id, child_note
from jobq.core.values.checks import MAX_ID_LENGTH
from jobq.errors import InvalidJob, WaitTimeout

HERE, ELSEWHERE = QueueName("t", "here"), QueueName("t", "elsewhere")
LEASE = Lease(
    queue=HERE,
    id="boss",
    token="1",
    life=0,
    name="boss",
    payload=b"[[],{}]",
    codec="json",
    attempt=1,
    failures=0,
    stalls=0,
    created_ms=0,
    started_ms=0,
    expires_ms=0,
)


def lease(**fields: Any) -> Lease:
    return msgspec.structs.replace(LEASE, **fields)


# ── children ──────────────────────────────────────────────────────────────────────────────────────


def test_the_id_of_a_child_follows_from_its_parent_and_its_number() -> None:
    assert [child_id(LEASE, HERE, n) for n in "01"] == ["boss:0", "boss:1"]
    assert child_id(lease(attempt=7, token="2"), HERE, "1") == "boss:1"


def test_children_of_other_queues_lives_and_jobs_have_other_ids() -> None:
    parents = [LEASE, lease(life=1), lease(id="boss:0"), lease(queue=ELSEWHERE), lease(id="boss~1")]
    ids = {
        (queue, child_id(parent, queue, "0"))
        for parent in parents[:4]
        for queue in (HERE, ELSEWHERE)
    }
    assert len(ids) == 8


def test_a_child_of_a_very_long_id_still_has_one() -> None:
    long = lease(id="x" * MAX_ID_LENGTH)
    ids = {child_id(long, HERE, f"{n}") for n in range(10)} | {
        child_id(lease(id="y" * MAX_ID_LENGTH), HERE, "0")
    }
    assert len(ids) == 11
    assert max(map(len, ids)) <= MAX_ID_LENGTH
    assert child_id(long, HERE, "3") == child_id(long, HERE, "3")


def test_a_run_without_children_waits_for_nothing() -> None:
    assert Children(LEASE).results() == {}


def test_a_run_whose_children_have_not_ended_waits_for_all_of_them() -> None:
    children = Children(lease(inputs=(Input(job=JobKey(HERE, "boss:0"), result=b"1"),)))
    for n in range(2):
        children.add(children.next(), JobKey(HERE, f"boss:{n}"), Any)
    with pytest.raises(WaitForChildren) as caught:
        children.results()
    assert caught.value.after == (Edge(JobKey(HERE, "boss:0")), Edge(JobKey(HERE, "boss:1")))


def test_results_come_by_id_in_the_order_the_children_were_added() -> None:
    failure = Failure(reason="error", type="ValueError", message="no")
    inputs = (
        Input(
            job=JobKey(HERE, "earlier"), result=b"0"
        ),  # the job waited for it before it ran: not one of these
        Input(job=JobKey(HERE, "boss:1"), failure=failure),
        Input(job=JobKey(HERE, "boss:2")),
        Input(job=JobKey(ELSEWHERE, "boss:0"), result=b"[1,2]"),
    )
    children = Children(lease(inputs=inputs))
    first, second, third = (children.next() for _ in range(3))
    children.add(third, JobKey(HERE, "boss:2"), Any)  # accepted in another order
    children.add(first, JobKey(ELSEWHERE, "boss:0"), tuple[int, int])
    children.add(second, JobKey(HERE, "boss:1"), Any)
    assert list(children.results().items()) == [
        ("boss:0", (1, 2)),
        ("boss:1", failure),
        ("boss:2", None),
    ]


def test_a_child_that_ended_need_not_be_added_again() -> None:
    children = Children(lease(inputs=(Input(job=JobKey(HERE, "boss:0"), result=b"1"),)))
    assert [children.next(), children.next()] == ["0", "1"]
    assert children.found("0", JobKey(HERE, "boss:0")) == JobKey(HERE, "boss:0")
    assert children.found("1", JobKey(HERE, "boss:1")) is None


def test_a_child_that_was_anothers_job_is_that_job_in_every_pass() -> None:
    noted = child_note(JobKey(HERE, "boss"), "1", JobKey(ELSEWHERE, "holder"))
    children = Children(lease(signals=((noted.name, noted.value), ("go", b"1"))))
    assert children.found("0", JobKey(HERE, "boss:0")) is None
    assert children.found("1", JobKey(ELSEWHERE, "boss:1")) == JobKey(ELSEWHERE, "holder")


def test_a_child_that_was_noted_is_put_again_unless_it_is_known_to_have_ended() -> None:
    """The note may have been stored and the child not: a run can die in between."""
    noted = child_note(JobKey(HERE, "boss"), "0", JobKey(HERE, "boss:0"))
    children = Children(lease(signals=((noted.name, noted.value),)))
    assert children.found("0", JobKey(HERE, "boss:0")) is None
    assert children.noted("0", JobKey(HERE, "boss:0"))
    assert not children.noted("0", JobKey(HERE, "other"))


def test_two_children_of_one_id_are_refused() -> None:
    children = Children(LEASE)
    children.add(children.next(), JobKey(HERE, "x"), Any)
    with pytest.raises(InvalidJob, match=r"boss .* two children with the id 'x'"):
        children.add(children.next(), JobKey(ELSEWHERE, "x"), Any)


def test_children_of_steps_are_numbered_apart_so_that_a_skipped_step_shifts_nobody() -> None:
    whole, skipping = Children(LEASE), Children(LEASE)
    labels = [
        whole.next(),
        whole.next("charge"),
        whole.next("charge"),
        whole.next(),
        whole.next("b"),
    ]
    assert labels == ["0", "charge/0", "charge/1", "1", "b/0"]
    assert [skipping.next(), skipping.next(), skipping.next("b")] == ["0", "1", "b/0"]


def test_a_job_and_its_child_never_make_the_same_id() -> None:
    parent, child = lease(id="x"), lease(id="x:a")
    assert child_id(parent, HERE, Children(parent).next("a:1")) == "x:a%3A1/0"
    assert child_id(child, HERE, Children(child).next("1")) == "x:a:1/0"


def test_a_child_of_a_step_with_a_long_name_has_an_id_that_fits() -> None:
    long = lease(id="y" * 256)
    ids = [child_id(long, HERE, Children(long).next("n" * 255 + end)) for end in "ab"]
    assert ids[0] != ids[1]
    assert all(len(id) <= 256 for id in ids)


def test_children_of_a_skipped_step_are_waited_for_and_keep_their_place() -> None:
    inputs = (
        Input(job=JobKey(HERE, "boss:0"), result=b"0"),
        Input(job=JobKey(ELSEWHERE, "kept"), result=b"[1]"),
    )
    children = Children(lease(inputs=inputs))
    children.add_of_step("charge", [JobKey(ELSEWHERE, "kept")])
    children.add(children.next(), JobKey(HERE, "boss:0"), Any)
    assert list(children.results().items()) == [("kept", [1]), ("boss:0", 0)]


# ── signals ───────────────────────────────────────────────────────────────────────────────────────


def test_signals_are_taken_once_each_oldest_first_by_name() -> None:
    inbox = Inbox(lease(signals=(("a", b"1"), ("b", b"2"), ("a", b"3"))))
    assert [inbox.take("a", None), inbox.take("a", None), inbox.take("b", None)] == [
        b"1",
        b"3",
        b"2",
    ]


def test_a_signal_that_is_not_there_ends_the_run_and_says_how_many_were_taken() -> None:
    inbox = Inbox(lease(signals=(("a", b"1"),)))
    inbox.take("a", None)
    with pytest.raises(WaitForSignal) as caught:
        inbox.take("a", 500)
    assert (caught.value.name, caught.value.seen, caught.value.timeout_ms) == ("a", 1, 500)


def test_a_wait_that_timed_out_times_out_in_every_pass() -> None:
    for _ in range(2):
        inbox = Inbox(lease(signals=(("a", b""), ("a", b"2"))))
        with pytest.raises(WaitTimeout, match=r"job boss .* signal 'a'"):
            inbox.take("a", 500)
        assert inbox.take("a", None) == b"2"


@pytest.mark.parametrize("name", ["", "$jobq.child 1", 7])
def test_a_signal_needs_a_name_of_its_own(name: Any) -> None:
    with pytest.raises(InvalidJob, match="signal="):
        Inbox(LEASE).take(name, None)
