"""Many waiting jobs with a slow reader of events, many keys, large flows, and large payloads."""

from __future__ import annotations

import random
from collections.abc import Mapping
from contextlib import nullcontext, suppress

from bench.growth.compared import (
    BATCH,
    PAYLOAD,
    Compared,
    Timer,
    claim,
    completed,
    drained,
    keep_nothing,
    put,
    remains,
    settled_down,
    spec,
)
from bench.growth.figures import Bound, flat, most, unbounded
from bench.places import Place
from jobq import Queue
from jobq.api.queue import DEFAULT_MAX_PAYLOAD
from jobq.core.defaults import LOG_CAP
from jobq.core.queues import QueueConfig
from jobq.core.records import Complete, Edge, Filter, JobKey, JobSpec, QueueName
from jobq.core.states import State
from jobq.errors import PayloadTooLarge
from jobq.stores.base import Store

MAIL = QueueName("default", "mail")


class Waiting(Compared):
    """Jobs of one queue that wait, beside a reader of events that reads nothing."""

    name, title = "waiting", "waiting jobs, and a reader that reads nothing"
    sizes, quick = (10_000, 1_000_000, 10_000_000), (2_000, 100_000)
    x_label = "waiting jobs"
    rounds = 50
    units: Mapping[str, str] = {"events kept for the reader": "events"}
    bounds: Mapping[str, Bound] = {
        # The cap, the events of one tick, and those since then.
        "events kept for the reader": most(max(LOG_CAP.values()) + 300_000),
        "tick": flat(3.0, floor=10),
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
        with timer(f"claim of {BATCH}"):
            taken = await store.settle([], worker="w", call=f"take {turn}", then=claim(MAIL))
        with timer(f"completion of {BATCH}"):
            await store.settle(completed(taken.leases), worker="w", call=f"end {turn}")
        with timer("counts"):
            await store.count(MAIL)
        with timer("stats"):
            await store.stats(MAIL)
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
    units: Mapping[str, str] = {"left of drained keys": "rows"}
    bounds: Mapping[str, Bound] = {
        "left of drained keys": flat(1.0, floor=30),
        "tick": flat(2.0, floor=5),
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
        with timer(f"claim of {BATCH}"):
            taken = await store.settle([], worker="w", call=f"take {turn}", then=claim(MAIL))
        with timer(f"completion of {BATCH}"):
            await store.settle(completed(taken.leases), worker="w", call=f"end {turn}")
        with timer("counts"):
            await store.count(MAIL)
        with timer("stats"):
            await store.stats(MAIL)
        with timer("tick"):
            await store.tick()

    async def finish(self, where: Place, store: Store, size: int, timer: Timer) -> None:
        """Drain the queue: no key may leave anything behind."""
        with timer("drain, per job", per=(await store.count(MAIL))[State.WAITING]):
            await drained(store, MAIL, "drainer")
        await settled_down(store)
        timer.add("left of drained keys", remains(where, "keys"))


class Flows(Compared):
    """Children of one job."""

    name, title = "flows", "children of one job"
    sizes, quick = (1_000, 10_000, 100_000), (200, 2_000)
    x_label = "children"
    rounds = 1
    bounds: Mapping[str, Bound] = {
        # Each of these is measured once.
        "end of the last child": flat(2.0, floor=20),
        "start of the parent, per child": flat(2.0, floor=0.03),
        "read of the parent, per child": flat(2.0, floor=0.03),
        "last call of the submit": unbounded("it makes the whole flow visible"),
    }
    chunk = 1_000
    """Jobs per call, as the public API has it."""

    async def fill(self, store: Store, size: int, timer: Timer) -> None:
        """Submit a flow and complete all but its last child."""
        children = [f"child-{n}" for n in range(size)]
        after = tuple(Edge(JobKey(MAIL, id), data=False) for id in children)
        parent = JobSpec(queue=MAIL, id="parent", name="noop", payload=PAYLOAD, after=after)
        specs = [*(spec(MAIL, id) for id in children), parent]
        chunks = [specs[n : n + self.chunk] for n in range(0, len(specs), self.chunk)]
        with timer("submit, per child", per=size):
            for n, chunk in enumerate(chunks, 1):
                with timer("last call of the submit") if n == len(chunks) else nullcontext():
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
    units: Mapping[str, str] = {"stored, per byte": "B", "stored of a refused job": "jobs"}
    bounds: Mapping[str, Bound] = {
        "stored, per byte": unbounded("at 1 kB, most of it is the record around the arguments"),
        "stored of a refused job": most(0),
        "counts": flat(2.0, floor=10),  # the disk is busy with the other calls
        **{
            what: unbounded("in proportion to the bytes")
            for what in ("put", "claim", "completion", "read", "page of 10 jobs")
        },
    }
    jobs = 30

    async def fill(self, store: Store, size: int, timer: Timer) -> None:
        for n in range(self.jobs):
            await store.put([spec(MAIL, f"job-{n}", payload=text(size))])

    async def probe(self, store: Store, size: int, timer: Timer, turn: int) -> None:
        with timer("put"):
            await store.put([spec(MAIL, f"p-{turn}", payload=text(size))])
        with timer("claim"):
            taken = await store.settle(
                [], worker="w", call=f"take {turn}", then=claim(MAIL, limit=1)
            )
        with timer("completion"):
            await store.settle(completed(taken.leases), worker="w", call=f"end {turn}")
        with timer("read"):
            await store.get([JobKey(MAIL, f"p-{turn}")])
        with timer("page of 10 jobs"):
            await store.find(Filter(queue=MAIL, state=State.WAITING), limit=10)
        with timer("counts"):
            await store.count(MAIL)

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
