"""meta: strings that travel with a job, its dead-letter copy and, if the queue allows, its
events.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from jobq.core.records.commands import Cancel, Reprioritise, Rerun, Update
from jobq.core.records.jobs import Edge, UniqueSpec
from jobq.core.records.queues import Fire, QueueConfig, ScheduleSpec
from jobq.core.records.states import State
from jobq_conformance.kit import SECOND, Desk, complete, fail, read_all, retry, snooze
from jobq_conformance.roles import needs

pytestmark = needs("meta", "flows", "unique", "schedules", "dead_letters", "delays")

META = {"trace": "00-4bf9", "who": "ada ☃", "1": "", "long": "x" * 3000}


async def test_meta_is_in_the_lease_and_in_the_record(q: Desk) -> None:
    await q.put_one("a", meta=META)
    await q.put_one("b")
    a, b = await q.claim(2)
    assert (a.meta, b.meta) == (META, None)
    assert ((await q.get("a")).meta, (await q.get("b")).meta) == (META, None)
    assert {r.id: r.meta for r in await read_all(q.store, q.queue)} == {"a": META, "b": None}
    (again,) = await q.put("a")
    assert again.found is not None
    assert again.found.meta == META


async def test_jobs_of_one_call_have_meta_of_their_own(q: Desk) -> None:
    ids = [f"j{n}" for n in range(30)]
    await q.store.put([q.spec(id, meta={"n": id} if n % 3 else None) for n, id in enumerate(ids)])
    assert [lease.meta for lease in await q.claim(30)] == [
        {"n": id} if n % 3 else None for n, id in enumerate(ids)
    ]


OPTIONS: list[dict[str, object]] = [
    {"delay_ms": SECOND},
    {"priority": 7},
    {"lifo": True},
    {"key": "k"},
    {"ttl_ms": 60 * SECOND},
]


@pytest.mark.parametrize("options", OPTIONS)
async def test_meta_goes_with_every_other_option(q: Desk, options: dict[str, object]) -> None:
    await q.put_one("a", meta=META, **options)
    q.clock.advance(2 * SECOND)
    assert (await q.take()).meta == META


async def test_meta_stays_through_all_that_can_happen_to_a_job(q: Desk) -> None:
    await q.put_one("a", meta=META, max_stalls=5)
    await q.alter(Update(job=q.key("a"), payload=b"[[1],{}]"))
    await q.alter(Reprioritise(job=q.key("a"), priority=3))
    await q.settle(retry(await q.take()))
    await q.settle(snooze(await q.take(), saved=b"1"))
    await q.take(lease_ms=SECOND)
    q.clock.advance(2 * SECOND)
    lease = await q.take()
    assert lease.meta == META
    await q.settle(fail(lease))
    await q.alter(Rerun(job=q.key("a")))
    lease = await q.take()
    assert lease.meta == META
    await q.settle(complete(lease))
    assert (await q.get("a")).meta == META


async def test_a_repeated_call_grants_the_same_meta(q: Desk) -> None:
    await q.put_one("a", meta=META)
    first = await q.exchange(call="claim", then=q.claiming())
    again = await q.exchange(call="claim", then=q.claiming())
    assert [lease.meta for lease in (*first.leases, *again.leases)] == [META, META]


async def test_members_of_a_flow_keep_their_own_meta(q: Desk) -> None:
    child, parent = (
        q.spec("child", meta={"n": "1"}),
        q.spec("parent", meta={"n": "2"}, after=(Edge(q.key("child")),)),
    )
    await q.store.put([child, parent], flow="f")
    lease = await q.take()
    assert (lease.id, lease.meta) == ("child", {"n": "1"})
    await q.settle(complete(lease))
    lease = await q.take()
    assert (lease.id, lease.meta) == ("parent", {"n": "2"})


async def test_a_schedule_gives_its_jobs_its_meta(q: Desk) -> None:
    template = q.spec("s", meta=META)
    now = q.clock()
    await q.store.put_schedule(
        ScheduleSpec(queue=q.queue, id="s", template=template, every_ms=SECOND), next_ms=now
    )
    assert await q.store.fire(
        [Fire(queue=q.queue, schedule="s", at_ms=now, next_ms=now + SECOND)]
    ) == [True]
    assert (await q.take()).meta == META


@pytest.mark.parametrize("mode", ["debounce", "keep_last"])
@pytest.mark.parametrize("newest", [{"n": "2"}, None])
async def test_what_replaces_a_job_brings_its_own_meta(
    q: Desk, mode: str, newest: dict[str, str] | None
) -> None:
    unique = UniqueSpec(lock="l", mode=mode, ttl_ms=60 * SECOND)  # type: ignore[arg-type]
    await q.put_one("a", unique=unique, delay_ms=SECOND, meta={"n": "1", "old": "x"})
    assert (await q.put_one("b", unique=unique, delay_ms=SECOND, meta=newest)).id == "a"
    assert (await q.get("a")).meta == newest
    q.clock.advance(2 * SECOND)
    assert (await q.take()).meta == newest


async def test_a_follow_up_has_the_newest_meta(q: Desk) -> None:
    unique = UniqueSpec(lock="l", mode="keep_last")
    await q.put_one("a", unique=unique, meta={"n": "1"})
    running = await q.take()
    await q.put_one("b", unique=unique, meta={"n": "2"})
    await q.put_one("c", unique=unique, meta={"n": "3"})
    assert running.meta == {"n": "1"}
    await q.settle(complete(running))
    lease = await q.take()
    assert (lease.id, lease.meta) == ("b", {"n": "3"})


async def test_a_dead_letter_copy_has_the_meta_of_its_job(q: Desk) -> None:
    graves = q.beside("graves")
    await q.store.declare(q.queue, QueueConfig(dead_letters="graves"))
    await q.put_one("a", meta=META)
    await q.put_one("b")
    await q.settle(*(fail(lease) for lease in await q.claim(2)))
    await q.tick()
    assert {r.origin: r.meta for r in await read_all(q.store, graves.queue)} == {
        "work/a": META,
        "work/b": None,
    }
    assert {lease.id: lease.meta for lease in await graves.claim(2)} == {
        "work/a/0": META,
        "work/b/0": None,
    }


# ── in events ─────────────────────────────────────────────────────────────────────────────────────


async def meta_of_events(q: Desk, id: str) -> list[tuple[str, dict[str, str] | None]]:
    """The meta in the events of a job."""
    return [(str(event.kind), event.meta) for event in await q.events(id)]


async def test_events_tell_no_meta_unless_their_queue_says_so(q: Desk) -> None:
    await q.put_one("a", meta=META)
    await q.settle(complete(await q.take()))
    assert await meta_of_events(q, "a") == [
        ("accepted", None),
        ("started", None),
        ("completed", None),
    ]


async def test_events_tell_the_names_that_their_queue_allows(q: Desk) -> None:
    await q.store.declare(q.queue, QueueConfig(event_meta=("trace", "who", "absent")))
    shown = {"trace": META["trace"], "who": META["who"]}
    await q.put_one("a", meta=META)
    await q.put_one("none")
    await q.put_one("other", meta={"long": "x"})
    leases = await q.claim(3)
    await q.settle(*(complete(lease) for lease in leases))
    assert await meta_of_events(q, "a") == [
        ("accepted", shown),
        ("started", shown),
        ("completed", shown),
    ]
    for id in ("none", "other"):
        assert await meta_of_events(q, id) == [
            ("accepted", None),
            ("started", None),
            ("completed", None),
        ]


async def test_every_kind_of_event_tells_it(q: Desk) -> None:
    await q.store.declare(q.queue, QueueConfig(event_meta=("trace",)))
    await q.put_one("a", meta=META, delay_ms=SECOND)
    q.clock.advance(2 * SECOND)
    await q.settle(retry(await q.take()))
    await q.settle(snooze(await q.take()))
    await q.take(lease_ms=SECOND)
    q.clock.advance(2 * SECOND)
    await q.settle(fail(await q.take()))
    await q.alter(Rerun(job=q.key("a")))
    await q.alter(Cancel(job=q.key("a")))
    kinds = await meta_of_events(q, "a")
    assert {meta["trace"] if meta else None for _, meta in kinds} == {META["trace"]}
    assert [kind for kind, _ in kinds] == [
        "accepted",
        "promoted",
        "started",
        "retried",
        "started",
        "snoozed",
        "started",
        "stalled",
        "started",
        "failed",
        "rerun",
        "cancelled",
    ]


@pytest.mark.parametrize(
    "options", [{"key": "k"}, {"priority": 3}, {"result_ttl_ms": 60 * SECOND}, {"cost": 2}]
)
async def test_jobs_of_every_kind_tell_it(q: Desk, options: dict[str, object]) -> None:
    await q.store.declare(q.queue, QueueConfig(event_meta=("trace",)))
    specs = [
        q.spec(f"j{n}", meta={"trace": str(n)} if n % 2 else None, **options) for n in range(20)
    ]
    if "key" in options:
        specs = [replace(spec, key=spec.id) for spec in specs]
    await q.store.put(specs)
    await q.settle(*(complete(lease) for lease in await q.claim(20)))
    for n in range(20):
        expected = {"trace": str(n)} if n % 2 else None
        assert await meta_of_events(q, f"j{n}") == [
            ("accepted", expected),
            ("started", expected),
            ("completed", expected),
        ]


async def test_the_names_are_stored_and_can_be_changed(q: Desk) -> None:
    assert (await q.store.declare(q.queue, QueueConfig())).event_meta == ()
    assert (
        await q.store.declare(q.queue, QueueConfig(event_meta=("trace", "who")))
    ).event_meta == ("trace", "who")
    assert (await q.store.declare(q.queue, QueueConfig())).event_meta == ("trace", "who")
    await q.put_one("a", meta=META)
    assert (await q.store.declare(q.queue, QueueConfig(event_meta=()))).event_meta == ()
    lease = await q.take()
    assert [meta and sorted(meta) for _, meta in await meta_of_events(q, "a")] == [
        ["trace", "who"],
        None,
    ]
    await q.settle(complete(lease))
    assert await q.state("a") is State.COMPLETED
