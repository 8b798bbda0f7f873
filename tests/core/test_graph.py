"""A flow is checked whole before anything of it is stored."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobq.core.records.jobs import Edge, JobKey, JobRecord, JobSpec, QueueName, UniqueSpec
from jobq.core.records.states import State
from jobq.core.rules.flows import check_flow, revivals
from jobq.errors import InvalidJob

QUEUE = QueueName("t", "q")


def job(id: str, *after: str, queue: QueueName = QUEUE, name: str = "step") -> JobSpec:
    edges = tuple(Edge(JobKey(QUEUE, parent)) for parent in after)
    return JobSpec(queue=queue, id=id, name=name, payload=b"[[],{}]", after=edges)


def test_jobs_come_after_those_they_wait_for() -> None:
    order = [spec.id for spec in check_flow([job("c", "a", "b"), job("b", "a"), job("a")])]
    assert order == ["a", "b", "c"]


def test_a_cycle_is_named_in_the_direction_of_waiting() -> None:
    with pytest.raises(InvalidJob) as refused:
        check_flow([job("a", "c"), job("b", "a"), job("c", "b"), job("d")])
    circle = str(refused.value).removeprefix("the flow has a cycle: ").split(" waits for ")
    assert len(circle) == 4
    assert circle[0] == circle[-1]
    waits = {("step (a)", "step (c)"), ("step (b)", "step (a)"), ("step (c)", "step (b)")}
    assert set(pairwise(circle)) == waits


def test_a_job_that_waits_for_itself_is_refused() -> None:
    with pytest.raises(InvalidJob, match=r"job .a. \(step\) waits for itself"):
        check_flow([job("a", "a")])


def test_a_repeated_id_is_refused() -> None:
    with pytest.raises(
        InvalidJob, match="two jobs of the flow have the id 'a' in queue 'q': charge and email"
    ):
        check_flow([job("a", name="charge"), job("a", name="email")])


def test_the_same_id_in_another_queue_is_another_job() -> None:
    assert len(check_flow([job("a"), job("a", queue=QueueName("t", "other"))])) == 2


def test_an_edge_may_lead_to_a_job_outside_the_flow() -> None:
    flow = [job("a", "stored")]
    assert check_flow(flow) == flow


def test_a_flow_lives_in_one_tenant() -> None:
    with pytest.raises(InvalidJob, match="two tenants, 't' and 'u'"):
        check_flow([job("a"), job("b", queue=QueueName("u", "q"))])
    with pytest.raises(InvalidJob, match="waits for a job of another tenant"):
        check_flow(
            [
                JobSpec(
                    queue=QueueName("u", "q"),
                    id="x",
                    name="n",
                    payload=b"",
                    after=(Edge(JobKey(QUEUE, "a")),),
                )
            ]
        )


def test_a_flow_of_nothing_is_fine() -> None:
    assert check_flow([]) == []


def test_a_long_chain_and_a_wide_fan_are_no_trouble() -> None:
    chain = [job(str(n), *([str(n - 1)] if n else [])) for n in range(10_000)]
    assert check_flow(list(reversed(chain))) == chain
    children = [job(f"c{n}") for n in range(10_000)]
    parent = job("p", *(child.id for child in children))
    assert check_flow([parent, *children])[-1] == parent


def test_a_long_cycle_is_shown_short() -> None:
    loop = [job(str(n), str((n + 1) % 5000)) for n in range(5000)]
    with pytest.raises(InvalidJob) as refused:
        check_flow(loop)
    assert len(str(refused.value)) < 500


def _has_cycle(count: int, edges: set[tuple[int, int]]) -> bool:
    """Find out by removing jobs that wait for nothing until none is left."""
    left = set(range(count))
    while free := {n for n in left if not any(a == n and b in left for a, b in edges)}:
        left -= free
    return bool(left)


@given(
    st.integers(1, 12).flatmap(
        lambda n: st.tuples(
            st.just(n), st.sets(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1)))
        )
    )
)
def test_any_graph_is_either_ordered_or_has_a_cycle(
    graph: tuple[int, set[tuple[int, int]]],
) -> None:
    count, edges = graph
    flow = [job(str(n), *(str(b) for a, b in edges if a == n)) for n in range(count)]
    if _has_cycle(count, edges):
        with pytest.raises(InvalidJob, match=r"the flow has a cycle|waits for itself"):
            check_flow(flow)
        return
    place = {spec.id: n for n, spec in enumerate(check_flow(flow))}
    assert len(place) == count
    assert all(place[str(b)] < place[str(a)] for a, b in edges)


def test_two_jobs_with_one_unique_lock_are_refused() -> None:
    def unique(id: str, lock: str) -> JobSpec:
        return msgspec.structs.replace(job(id), unique=UniqueSpec(lock=lock))

    with pytest.raises(InvalidJob, match="jobs 'a' and 'b' of the flow have the same unique lock"):
        check_flow([unique("a", "L"), unique("b", "L")])
    assert len(check_flow([unique("a", "L"), unique("b", "M")])) == 2


def test_members_are_revived_after_those_they_wait_for() -> None:
    def member(id: str, state: State, *children: str) -> tuple[JobKey, JobRecord]:
        record = JobRecord(
            queue=QUEUE,
            id=id,
            name="t",
            state=state,
            payload=b"",
            children=tuple(JobKey(QUEUE, child) for child in children),
        )
        return JobKey(QUEUE, id), record

    failed, done = State.FAILED, State.COMPLETED
    members = dict(
        [
            member("top", failed, "left", "right"),
            member("left", failed, "a", "gone"),
            member("right", State.CANCELLED, "a", "b"),
            member("a", done),
            member("b", failed),
            member("running", State.ACTIVE),
        ]
    )
    groups = [{key.id for key in group} for group in revivals(members)]
    assert groups == [{"b"}, {"left", "right"}, {"top"}]
    circle = dict([member("x", failed, "y"), member("y", failed, "x")])
    with pytest.raises(InvalidJob, match="cycle"):
        revivals(circle)
