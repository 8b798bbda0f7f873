"""Children, dead letters, retention and flows: what the store writes down is what core says, with
any text.
"""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from jobq.core.records.commands import Cancel, Remove
from jobq.core.records.jobs import ChildPolicy, Failure, JobSpec, Mode, Topic, UniqueSpec
from jobq.core.records.queues import QueueConfig, RetentionData
from jobq.core.records.states import Kind, State
from jobq.core.rules import outcomes
from jobq.core.rules.ended import kept_ms, letter_id, letter_key, origin, second_letter_id
from jobq.core.rules.flows import check_locks
from jobq.core.rules.outcomes import ChildEnd
from jobq.errors import InvalidJob
from jobq_conformance.examples import examples
from jobq_conformance.kit import HOUR, LEASE, SECOND, Desk, complete, fail, read_all
from tests.rules.kit import Table

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=80) | st.sampled_from(
    ["ä" * 1_999, "𝄞" * 700, "e" * 493 + "üü", "x" * 2_000, "%s %d %", ""]
)
ids = st.text(
    st.characters(exclude_categories=["Cs", "Cc"], exclude_characters="{}"),
    min_size=1,
    max_size=256,
)
policies: st.SearchStrategy[ChildPolicy] = st.sampled_from(["fail", "ignore", "continue"])


async def own_failure(q: Desk, id: str) -> Failure | None:
    return (await q.get(id)).failure


@examples(60)
@given(
    end=st.sampled_from(["completed", "failed", "cancelled", "stalled", "expired"]),
    policy=policies,
    message=texts,
    id=ids,
)
@example("failed", "fail", "𝄞" * 700, "ü" * 256)
@example("failed", "continue", "%s %d", "a")
def test_a_childs_end_reaches_its_parent_as_core_says(
    table: Table, end: str, policy: ChildPolicy, message: str, id: str
) -> None:
    async def play(q: Desk) -> None:
        parent = "p" if id != "p" else "q"
        child = q.spec(id, max_stalls=0, ttl_ms=SECOND if end == "expired" else None)
        await q.store.put([child, q.spec(parent, after=(q.edge(id),), on_child_failure=policy)])
        if end == "cancelled":
            await q.alter(Cancel(job=q.key(id)))
        elif end == "expired":
            q.clock.advance(SECOND)
        else:
            lease = await q.take(lease_ms=LEASE)
            q.clock.advance(LEASE if end == "stalled" else 7)
            if end != "stalled":
                await q.settle(
                    complete(lease, b"1") if end == "completed" else fail(lease, message)
                )
        await q.tick()
        record = await q.get(id)
        ended = ChildEnd(
            id, record.name, record.state, record.failure, record.attempt, record.finished_ms or 0
        )
        if outcomes.fails_parent(policy, record.state):
            expected = outcomes.parent_failure(ended, attempt=0, now_ms=q.clock.now_ms)
            assert await q.state(parent) is State.FAILED
            assert await own_failure(q, parent) == expected
            event = await q.last_event(parent)
            assert (event.reason, event.error, event.fingerprint) == (
                "child",
                outcomes.error_text(expected),
                expected.fingerprint,
            )
        else:
            (given_,) = (await q.take()).inputs
            assert given_.failure == outcomes.failure_for_parent(policy, ended)
            assert given_.result == (b"1" if end == "completed" else None)

    table.play(play)


@examples(40)
@given(id=ids, mode=st.sampled_from([None, "plain", "keyed"]), keyed=st.booleans(), message=texts)
@example("ü" * 256, None, False, "𝄞" * 700)
def test_a_dead_letter_is_what_core_says(
    table: Table, id: str, mode: Mode | None, keyed: bool, message: str
) -> None:
    async def play(q: Desk) -> None:
        graves = q.beside("graves")
        await q.store.declare(q.queue, QueueConfig(dead_letters="graves"))
        if mode is not None:
            await q.store.declare(graves.queue, QueueConfig(mode=mode))
        key = "k" if keyed else None
        await q.put_one(id, key=key, priority=4)
        await q.settle(fail(await q.take("w7"), message))
        await q.tick()
        (listed,) = await read_all(q.store, graves.queue)
        copy = await graves.get(listed.id)
        assert copy.id == letter_id("work", id, 0)
        assert copy.key == letter_key(mode, key, "work")
        assert copy.origin == origin("work", id)
        assert (copy.priority, copy.attempt, copy.failures) == (4, 0, 0)
        assert copy.failure == await own_failure(q, id)

    table.play(play)


@examples(40)
@given(id=ids)
@example("ü" * 256)
@example("x" * 252)
def test_the_copy_of_a_job_whose_id_is_used_again_has_the_id_that_core_says(
    table: Table, id: str
) -> None:
    async def play(q: Desk) -> None:
        graves = q.beside("graves")
        await q.store.declare(q.queue, QueueConfig(dead_letters="graves"))
        for _ in range(2):
            await q.put(id)
            await q.settle(fail(await q.take()))
            await q.alter(Remove(job=q.key(id)))
        await q.tick()
        copies = {copy.id for copy in await read_all(q.store, graves.queue)}
        (second,) = copies - {letter_id("work", id, 0)}
        number = int(second.rpartition("/")[2])
        assert second == second_letter_id("work", id, 0, number)
        *_, last = [event for event in await q.events() if event.kind is Kind.FAILED]
        # PostgreSQL numbers events after the commit, and takes another number that is used once.
        assert number == last.number or q.store.url.startswith("postgresql")

    table.play(play)


spans = st.sampled_from([None, 0, 1, 30 * SECOND, HOUR])


@examples(60)
@given(
    end=st.sampled_from([State.COMPLETED, State.FAILED, State.CANCELLED]),
    keep=spans,
    result_ttl=st.sampled_from([None, 1, 90 * SECOND]),
    watched=st.booleans(),
    swept=st.booleans(),
)
def test_a_record_is_kept_as_long_as_core_says(
    table: Table, end: State, keep: int | None, result_ttl: int | None, watched: bool, swept: bool
) -> None:
    retention = RetentionData(completed_ms=keep, failed_ms=keep, cancelled_ms=keep, count=None)

    async def finish(q: Desk) -> None:
        lease = await q.take()
        if end is State.CANCELLED:
            await q.alter(Cancel(job=q.key("a")))
        await q.settle(complete(lease) if end is State.COMPLETED else fail(lease))

    async def play(q: Desk) -> None:
        await q.store.declare(q.queue, QueueConfig(retention=retention))
        await q.put_one("a", result_ttl_ms=result_ttl)
        if watched:
            async with q.store.listen([Topic("ended", q.queue, "a")]):
                await finish(q)
        else:
            await finish(q)
        kept = kept_ms(retention, end, result_ttl_ms=result_ttl, watched=watched)
        for ms, there in (
            ((1_000 * HOUR, True),) if kept is None else ((kept - 1, True), (1, False))
        ):
            if ms >= 0:
                q.clock.advance(ms)
                if swept:
                    await q.tick()
                assert await q.states("a") == [end.value if there else None]

    table.play(play)


@examples(60)
@given(
    locks=st.lists(st.sampled_from([None, "L", "M"]), min_size=2, max_size=5),
    waits=st.booleans(),
    held=st.booleans(),
)
@example(["L", "L"], True, False)
@example(["L", "M"], True, True)
def test_a_flow_with_unique_members_is_refused_or_runs_to_its_end(
    table: Table, locks: list[str | None], waits: bool, held: bool
) -> None:
    async def play(q: Desk) -> None:
        def unique(lock: str | None) -> UniqueSpec | None:
            return None if lock is None else UniqueSpec(lock=lock)

        def member(n: int, lock: str | None) -> JobSpec:
            return q.spec(
                f"m{n}", unique=unique(lock), after=(q.edge(f"m{n - 1}"),) if waits and n else ()
            )

        refused = True
        if held:
            await q.put_one("holder", unique=unique("L"))
        specs = [member(n, lock) for n, lock in enumerate(locks)]
        specs.append(q.spec("p", after=tuple(q.edge(spec.id) for spec in specs)))
        with contextlib.suppress(InvalidJob):
            check_locks(specs)
            refused = False
        if refused:
            with pytest.raises(InvalidJob, match="have the same unique lock"):
                await q.store.put(specs, flow="f")
            assert await q.states(*(spec.id for spec in specs)) == [None] * len(specs)
            return
        await q.store.put(specs, flow="f")
        for _ in range(20):
            await q.settle(*(complete(lease) for lease in await q.claim(5)))
        assert await q.state("p") is State.COMPLETED

    table.play(play)
