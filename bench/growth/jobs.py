"""Many waiting jobs with a slow reader of events, many keys, large flows, and large payloads."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import suppress

from bench.growth.compared import (
    BATCH,
    PAYLOAD,
    Compared,
    Timer,
    claim,
    completed,
    drained,
    each_step,
    keep_nothing,
    probe_jobs,
    put,
    remains,
    settled_down,
    spec,
)
from bench.growth.figures import EACH, TICK, Measure, flat, most, unbounded
from bench.places import Place
from jobq import Queue
from jobq.api.queue import DEFAULT_MAX_PAYLOAD
from jobq.client.connection import CHUNK
from jobq.core.records.defaults import LOG_CAP
from jobq.core.records.jobs import Complete, Edge, Filter, JobKey, JobSpec, QueueName
from jobq.core.records.queues import QueueConfig
from jobq.core.records.states import State
from jobq.errors import PayloadTooLarge
from jobq.stores.base import Store

MAIL = QueueName("default", "mail")


class Waiting(Compared):
    """Jobs of one queue that wait, beside a reader of events that reads nothing."""

    name, title = "waiting", "waiting jobs, and a reader that reads nothing"
    sizes, quick = (10_000, 1_000_000, 10_000_000), (2_000, 100_000)
    x_label = "waiting jobs"
    rounds = 50
    measures: Mapping[str, Measure] = {
        # The cap; 100,000 that come between two ticks while the store is filled; and a tick drops
        # whole entries, of up to 1,000 events each, 500 per call: there may be some left.
        "events kept for the reader": Measure("events", most(max(LOG_CAP.values()) + 300_000)),
        "tick": Measure("ms", TICK),
    }

    async def fill(self, store: Store, size: int, timer: Timer) -> None:
        await keep_nothing(store, MAIL)
        await store.ack_events(MAIL, "asleep", "0")
        for start in range(0, size, 100_000):
            end = min(start + 100_000, size)
            await put(store, (spec(MAIL, f"job-{n}") for n in range(start, end)))
            await store.tick()  # as a worker does every few seconds

    async def probe(self, store: Store, size: int, timer: Timer, turn: int) -> None:
        with timer("put of 1"):
            await store.put([spec(MAIL, f"one-{turn}")])
        with timer(f"put of {BATCH}"):
            await store.put([spec(MAIL, f"many-{turn}-{n}") for n in range(BATCH)])
        await probe_jobs(store, MAIL, timer, turn)
        with timer("page of 50 jobs"):
            await store.find(Filter(queue=MAIL, state=State.WAITING), limit=50)
        with timer("read of the last events"):
            end = (await store.read_events(MAIL)).position
            await store.read_events(MAIL, after=end)
        with timer("tick"):
            await store.tick()

    async def finish(self, where: Place, store: Store, size: int, timer: Timer) -> None:
        timer.add("events kept for the reader", await events_kept(store, MAIL))


async def events_kept(store: Store, queue: QueueName) -> int:
    """How many events the log of a queue has."""
    end = (await store.read_events(queue)).position
    await store.put([spec(queue, "last")])
    first = await store.read_events(queue, after="0", limit=1)
    last = await store.read_events(queue, after=end, limit=1)
    # A gap has the number of the last event that was dropped.
    dropped = first.events[0].number if first.events[0].kind == "gap" else 0
    return last.events[-1].number - dropped


class Keys(Compared):
    """Keys of a keyed queue, with one job each."""

    name, title = "keys", "keys of a keyed queue"
    sizes, quick = (10_000, 100_000, 1_000_000), (2_000, 20_000)
    x_label = "keys with a waiting job"
    rounds = 50
    measures: Mapping[str, Measure] = {
        # Nothing of a key. On Valkey, all keys of the server count: those of the store and of the
        # queue itself (settings, counters, log, minutes) are fewer than 30.
        "left of drained keys": Measure("rows", flat(1.0, floor=30)),
        "tick": Measure("ms", TICK),
    }

    async def fill(self, store: Store, size: int, timer: Timer) -> None:
        await store.declare(MAIL, QueueConfig(mode="keyed"))
        await keep_nothing(store, MAIL)
        await put(store, (spec(MAIL, f"job-{n}", key=f"key-{n}") for n in range(size)))

    async def probe(self, store: Store, size: int, timer: Timer, turn: int) -> None:
        with timer(f"put of {BATCH} with new keys"):
            await store.put(
                [spec(MAIL, f"n-{turn}-{n}", key=f"new-{turn}-{n}") for n in range(BATCH)]
            )
        await probe_jobs(store, MAIL, timer, turn)
        with timer("tick"):
            await store.tick()

    async def finish(self, where: Place, store: Store, size: int, timer: Timer) -> None:
        """Drain the queue: no key may leave anything behind."""
        with timer("drain, per job", per=(await store.count(MAIL))[State.WAITING]):
            await drained(store, MAIL, "drainer")
        await settled_down(store)
        timer.add("left of drained keys", remains(where, "keys"))


class Submits(Compared):
    """Children of one job that are submitted with it."""

    name, title = "submits", "children that are submitted with one job"
    sizes, quick = (1_000, 10_000, 100_000), (200, 2_000)
    x_label = "children"
    rounds = 1
    measures: Mapping[str, Measure] = {
        "submit, per child": Measure("ms", EACH),
        # It makes jobs of all children, by steps.
        "last call, per child": Measure("ms", EACH),
        # A step has up to 500 members and edges, in a flow of any size. The smallest flow has less
        # than ten steps, and the longest of hundreds is compared with the longest of those. So this
        # is measured with all noise: a step of 500 takes up to 100 ms on PostgreSQL.
        "longest step of the last call": Measure("ms", flat(2.0, floor=100)),
    }

    async def fill(self, store: Store, size: int, timer: Timer) -> None:
        """Submit a flow."""
        chunks = flow_of(size)
        with timer("submit, per child", per=size):
            for chunk in chunks[:-1]:
                await store.put(chunk, flow="flow", last=False)
            with (
                timer("last call, per child", per=size),
                each_step(store, timer, "longest step of the last call"),
            ):
                await store.put(chunks[-1], flow="flow")

    async def probe(self, store: Store, size: int, timer: Timer, turn: int) -> None:
        timer.counts = True
        with timer("counts"):
            await store.count(MAIL)


def flow_of(size: int) -> list[list[JobSpec]]:
    """A job that waits for so many children, in the calls of the public API."""
    children = [f"child-{n}" for n in range(size)]
    after = tuple(Edge(JobKey(MAIL, id), data=False) for id in children)
    parent = JobSpec(queue=MAIL, id="parent", name="noop", payload=PAYLOAD, after=after)
    specs = [*(spec(MAIL, id) for id in children), parent]
    return [specs[n : n + CHUNK] for n in range(0, len(specs), CHUNK)]


class Flows(Compared):
    """Children of one job."""

    name, title = "flows", "children of one job"
    sizes, quick = (1_000, 10_000, 100_000), (200, 2_000)
    x_label = "children"
    rounds = 1
    measures: Mapping[str, Measure] = {
        # Once per flow: nothing is warm. Each takes a few milliseconds at any size.
        "end of the last child": Measure("ms", flat(2.0, floor=20)),
        "start of the parent, per child": Measure("ms", EACH),
        "read of the parent, per child": Measure("ms", EACH),
    }

    async def fill(self, store: Store, size: int, timer: Timer) -> None:
        """Submit a flow and complete all but its last child."""
        chunks = flow_of(size)
        for n, chunk in enumerate(chunks, 1):
            await store.put(chunk, flow="flow", last=n == len(chunks))
        with timer("end of a child", per=size - 1):
            await self._complete(store, size - 1)

    async def _complete(self, store: Store, count: int) -> None:
        done, held = 0, list[Complete]()
        while done < count:
            taken = await store.settle(
                held, worker="w", call=f"{done}", then=claim(MAIL, limit=min(500, count - done))
            )
            held = completed(taken.leases)
            done += len(held)
            assert held, "a child of the flow is missing"
        await store.settle(held, worker="w", call="all but one")

    async def probe(self, store: Store, size: int, timer: Timer, turn: int) -> None:
        if turn:
            return
        timer.counts = True  # there is one last child
        taken = await store.settle([], worker="w", call="last", then=claim(MAIL, limit=1))
        with timer("end of the last child"):
            await store.settle(completed(taken.leases), worker="w", call="the last child")
        with timer("start of the parent, per child", per=size):
            taken = await store.settle([], worker="w", call="parent", then=claim(MAIL, limit=1))
        assert [lease.id for lease in taken.leases] == ["parent"], "the parent did not start"
        with timer("read of the parent, per child", per=size):
            await store.get([JobKey(MAIL, "parent")])
        for _ in range(20):
            with timer("read of a child"):
                await store.get([JobKey(MAIL, "child-7")])


class Payloads(Compared):
    """Bytes of a job's arguments, up to the default limit."""

    name, title = "payloads", "bytes of arguments"
    sizes = quick = (1_024, 65_536, DEFAULT_MAX_PAYLOAD)
    x_label = "bytes of a job's arguments"
    rounds = 20
    measures: Mapping[str, Measure] = {
        "stored, per byte": Measure(
            "B", unbounded("at 1 kB, most of it is the record around the arguments")
        ),
        "stored of a refused job": Measure("jobs", most(0)),
        # They read no arguments, but the megabytes of the call before have emptied all caches:
        # some hundred pages have to be read again, at 10 µs each.
        "counts": Measure("ms", flat(2.0, floor=5)),
        "stats": Measure("ms", flat(2.0, floor=5)),
        **{
            what: Measure("ms", unbounded("in proportion to the bytes"))
            for what in ("put", "claim of 1", "completion of 1", "read", "page of 10 jobs")
        },
    }
    jobs = 30

    async def fill(self, store: Store, size: int, timer: Timer) -> None:
        for n in range(self.jobs):
            await store.put([spec(MAIL, f"job-{n}", payload=text(size))])

    async def probe(self, store: Store, size: int, timer: Timer, turn: int) -> None:
        with timer("put"):
            await store.put([spec(MAIL, f"p-{turn}", payload=text(size))])
        await probe_jobs(store, MAIL, timer, turn, limit=1)
        with timer("read"):
            await store.get([JobKey(MAIL, f"p-{turn}")])
        with timer("page of 10 jobs"):
            await store.find(Filter(queue=MAIL, state=State.WAITING), limit=10)

    async def finish(self, where: Place, store: Store, size: int, timer: Timer) -> None:
        stored = timer.best()["size of the store"] * 1e6
        timer.add("stored, per byte", stored / self.jobs / size)
        queue = Queue("refused", where.url)
        async with queue:
            with suppress(PayloadTooLarge):
                await queue.task_by_name("noop").enqueue("x" * (DEFAULT_MAX_PAYLOAD + 1))
            counts = await store.count(QueueName("default", "refused"))
        timer.add("stored of a refused job", sum(counts.values()))


def text(size: int) -> bytes:
    """Arguments of so many bytes that do not compress."""
    return b'[["' + random.Random(size).randbytes(size // 2).hex().encode() + b'"],{}]'
