"""Submitting flows: steps of bounded size, dead submitters, and that nothing is left over."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from jobq.core.records.defaults import FLOW_MS
from jobq.core.records.jobs import Edge, JobKey, QueueName
from jobq.core.records.queues import QueueConfig, RetentionData
from jobq.core.records.states import State
from jobq.errors import ConfigError, InvalidJob
from jobq.stores import open_store
from jobq.stores.valkey import keys
from jobq.stores.valkey.flows import SETTLING_MS
from jobq.stores.valkey.store import ValkeyStore
from tests.stores.valkey.jobs import done, exchange, spec, take
from tests.stores.valkey.servers import Server

MEMBERS, STEP = 2500, 500
STEPS = ["tied"] * 5 + ["free"] * 5


class Clock:
    """A clock in milliseconds that the test sets."""

    now_ms = 1_700_000_000_000

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def timed(server: Server, clock: Clock) -> AsyncIterator[ValkeyStore]:
    """A handle that uses the clock of the test."""
    handle = open_store(server.url, clock=clock)
    assert isinstance(handle, ValkeyStore)
    async with handle:
        yield handle


async def staged(store: ValkeyStore, queue: QueueName) -> None:
    """Stage a large flow and do not submit it."""
    ids = [f"c{n}" for n in range(MEMBERS)]
    for start in range(0, MEMBERS, 500):
        await store.put(
            [spec(queue, id) for id in ids[start : start + 500]], flow="big", last=False
        )
    after = tuple(Edge(JobKey(queue, id)) for id in ids)
    await store.put([spec(queue, "p", after=after)], flow="big", last=False)


async def counts(store: ValkeyStore, queue: QueueName) -> dict[State, int]:
    """The number of jobs by state, without states that have none."""
    return {state: n for state, n in (await store.count(queue)).items() if n}


def flow_keys(server: Server, queue: QueueName) -> list[str]:
    """All keys of staged flows."""
    patterns = (f"{keys.Space().prefix(queue)}f*", "jq:{flow:*")
    answers = [server.tell("KEYS", pattern).decode().split("\r\n") for pattern in patterns]
    return [line for answer in answers for line in answer if line.startswith("jq:")]


def left(server: Server, queue: QueueName) -> list[str]:
    """All keys of flows, in order."""
    return sorted(flow_keys(server, queue))


async def test_a_step_brings_in_a_bounded_number_of_members(
    timed: ValkeyStore, queue: QueueName
) -> None:
    await staged(timed, queue)
    counts = []
    for which in STEPS:
        await timed.calls.fcall(
            "submit", keys.Space().prefix(queue), timed.calls.now(), "big", which
        )
        counts.append((await timed.count(queue)).get(State.WAITING, 0))
    assert counts == [0] * 5 + [STEP * n for n in range(1, 6)]


@pytest.mark.parametrize("steps", [0, 1, 5, 6, 9])
async def test_a_tick_finishes_the_flow_of_a_dead_submitter(
    timed: ValkeyStore, queue: QueueName, clock: Clock, steps: int
) -> None:
    await staged(timed, queue)
    await timed.calls.fcall("manifest", keys.Space().manifest(queue.tenant, "big"), "submit")
    for which in STEPS[:steps]:
        await timed.calls.fcall(
            "submit", keys.Space().prefix(queue), timed.calls.now(), "big", which
        )
    clock.now_ms += SETTLING_MS + 1
    await timed.tick()
    assert await counts(timed, queue) == {State.WAITING: MEMBERS, State.BLOCKED: 1}
    ended = 0
    while leases := await take(timed, queue, 500):
        await timed.settle([done(lease) for lease in leases], worker="w1", call=f"done{ended}")
        ended += len(leases)
    assert ended == MEMBERS + 1


async def test_the_submitter_may_repeat_the_call_and_finish_the_flow(
    timed: ValkeyStore, queue: QueueName, server: Server
) -> None:
    await staged(timed, queue)
    await timed.calls.fcall("manifest", keys.Space().manifest(queue.tenant, "big"), "submit")
    await timed.calls.fcall("submit", keys.Space().prefix(queue), timed.calls.now(), "big", "tied")
    (answer,) = await timed.put([spec(queue, "last")], flow="big")
    assert await counts(timed, queue) == {State.WAITING: MEMBERS, State.BLOCKED: 1}
    assert answer.id == "last"  # not a member: the flow was submitted before


async def test_a_submitted_flow_leaves_two_keys_that_expire(
    store: ValkeyStore, queue: QueueName, server: Server
) -> None:
    await staged(store, queue)
    await store.put([spec(queue, "q", after=(Edge(JobKey(queue, "c1")),))], flow="big")
    assert left(server, queue) == [
        keys.Space().manifest(queue.tenant, "big"),
        f"{keys.Space().prefix(queue)}fs:big",
    ]
    for key in left(server, queue):
        assert 0 < int(server.tell("PTTL", key).strip()[1:]) <= 600_000
    assert not store.flows.drafts


async def test_members_are_not_staged_again_when_they_are_jobs(
    store: ValkeyStore, queue: QueueName, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.declare(queue, QueueConfig(retention=RetentionData(completed_ms=0)))
    specs = [spec(queue, "a"), spec(queue, "p", after=(Edge(JobKey(queue, "a")),))]
    async with open_store(server.url) as other:
        assert isinstance(other, ValkeyStore)

        async def late(name: str, key: str, *args: Any, **options: Any) -> Any:
            """Before this caller stages the members, another one submits them, and they run."""
            if name == "stage":
                monkeypatch.undo()
                await store.put(specs, flow="f")
                for _ in specs:
                    (lease,) = await take(store, queue)
                    await exchange(store, queue, done(lease), n=0)
                await store.tick()
            return await fcall(name, key, *args, **options)

        fcall = other.calls.fcall
        monkeypatch.setattr(other.calls, "fcall", late)
        results = await other.put(specs, flow="f")
    assert [(each.id, each.duplicate) for each in results] == [("a", True), ("p", True)]
    assert await counts(store, queue) == {}
    assert len(left(server, queue)) == 2  # no staged members, and no reserved places


async def test_a_refused_call_does_not_discard_a_flow_that_another_caller_submitted(
    store: ValkeyStore, queue: QueueName, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    await store.put([spec(queue, "x")])
    specs = [spec(queue, "a"), spec(queue, "p", after=(Edge(JobKey(queue, "x")),))]
    async with open_store(server.url) as other:
        assert isinstance(other, ValkeyStore)

        async def late(name: str, key: str, *args: Any, **options: Any) -> Any:
            """Before this caller looks for x, another one submits the flow, and x is removed."""
            if name == "seal":
                monkeypatch.undo()
                await store.put(specs, flow="f")
                raise InvalidJob("x is gone")
            return await fcall(name, key, *args, **options)

        fcall = other.calls.fcall
        monkeypatch.setattr(other.calls, "fcall", late)
        results = await other.put(specs, flow="f")
    assert [each.state for each in results] == [State.WAITING, State.BLOCKED]
    assert await counts(store, queue) == {State.WAITING: 2, State.BLOCKED: 1}


async def test_a_refused_flow_leaves_no_keys(
    store: ValkeyStore, queue: QueueName, server: Server
) -> None:
    await store.put([spec(queue, "a")], flow="f", last=False)
    with pytest.raises(InvalidJob):
        await store.put([spec(queue, "p", after=(Edge(JobKey(queue, "nobody")),))], flow="f")
    assert flow_keys(server, queue) == []
    assert not store.flows.drafts


async def test_a_swept_flow_cannot_be_finished_in_part(
    timed: ValkeyStore, queue: QueueName, clock: Clock
) -> None:
    await timed.put([spec(queue, "a")], flow="f", last=False)
    clock.now_ms += FLOW_MS + 1
    await timed.tick()
    with pytest.raises(InvalidJob, match="has been removed"):
        await timed.put([spec(queue, "b")], flow="f")
    assert await counts(timed, queue) == {}
    await timed.put([spec(queue, "b")], flow="f")
    assert await counts(timed, queue) == {State.WAITING: 1}


async def test_a_flow_cannot_be_finished_in_part_after_another_caller_was_refused(
    store: ValkeyStore, queue: QueueName, server: Server
) -> None:
    async with open_store(server.url) as other:
        for each in (store, other):
            await each.put([spec(queue, "a")], flow="f", last=False)
        with pytest.raises(InvalidJob, match="nobody"):
            await store.put([spec(queue, "p", after=(Edge(JobKey(queue, "nobody")),))], flow="f")
        with pytest.raises(InvalidJob, match="submit it again"):
            await other.put([spec(queue, "b")], flow="f")
    assert await counts(store, queue) == {}


async def test_an_obliterated_queue_leaves_no_keys_of_staged_flows(
    store: ValkeyStore, queue: QueueName, server: Server
) -> None:
    await staged(store, queue)
    assert await store.obliterate(queue)
    assert flow_keys(server, queue) == [keys.Space().manifest(queue.tenant, "big")]


async def test_a_handle_learns_of_new_partitions_when_it_puts_a_flow(
    store: ValkeyStore, queue: QueueName, server: Server
) -> None:
    await store.partitions.prefixes(queue)
    async with open_store(server.url) as other:
        await other.declare(queue, QueueConfig(partitions=4))
    await store.put(
        [spec(queue, "a"), spec(queue, "p", after=(Edge(JobKey(queue, "a")),))], flow="f"
    )
    assert await counts(store, queue) == {State.WAITING: 1, State.BLOCKED: 1}


async def test_a_flow_whose_queue_gets_partitions_while_staged_is_refused_whole(
    store: ValkeyStore, queue: QueueName, server: Server
) -> None:
    await store.put([spec(queue, "a")], flow="f", last=False)
    async with open_store(server.url) as other:
        await other.declare(queue, QueueConfig(partitions=4))
    with pytest.raises(ConfigError, match="submit it again"):
        await store.put([spec(queue, "b")], flow="f")
    assert await counts(store, queue) == {}
    await store.put([spec(queue, "a"), spec(queue, "b")], flow="f")
    assert await counts(store, queue) == {State.WAITING: 2}
