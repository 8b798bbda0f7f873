"""Fuzzed calls of the public API.

Each call succeeds or raises a jobq error, and none affects the calls beside it. `make test` makes a
few thousand calls per store, `make fuzz` 100,000 (JQ_FUZZ_CALLS).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from datetime import timedelta
from random import Random
from typing import Any

import pytest

from jobq import Bucket, Cron, Every, JobqError, Queue, Rate, Retention, Retry, Unique, Worker
from jobq.core.rules.options import BY_NAME
from jobq.stores import open_store
from jobq_conformance.examples import number
from jobq_conformance.spec_values import example
from tests.fuzz.strange import anything, mostly

CALLS = int(os.environ.get("JQ_FUZZ_CALLS", number(3_000)))
SEED = int(os.environ.get("JQ_FUZZ_SEED", "1"))
ROUND = 50

OPTIONS = {
    "id": mostly("a", "b", "c", "d"),
    "delay": mostly(0, 1, 60),
    "at": mostly(None),
    "priority": mostly(0, 1, 9),
    "lifo": mostly(True, False),
    "retry": mostly(0, 3, Retry(2)),
    "max_stalls": mostly(0, 3),
    "timeout": mostly(1, None),
    "ttl": mostly(60, None),
    "result_ttl": mostly(60),
    "unique": mostly(True, False, Unique("n"), Unique(mode="keep_last")),
    "cost": mostly(1, 2),
    "key": mostly("k"),
    "call_timeout": mostly(1),
    "on_child_failure": mostly("fail", "ignore"),
    "after": mostly([]),
    "meta": mostly({"a": "b"}),
}
OPTIONS |= {name: mostly(example(BY_NAME[name])) for name in BY_NAME if name not in OPTIONS}

LIMITS = (
    "limit",
    "rate",
    "key_limit",
    "key_rate",
    "key",
)  # not max_waiting: the neighbours would be refused, rightly


def some_options(random: Random) -> dict[str, Any]:
    return {
        name: OPTIONS[name](random)
        for name in random.sample(sorted(OPTIONS), random.choice((0, 0, 1, 1, 2, 3)))
    }


class Calls:
    """The calls of the public API that a seed can choose among, on one queue with one task."""

    def __init__(self, queue: Queue, task: Any, random: Random) -> None:
        self.queue, self.task, self.random = queue, task, random
        self.made: list[Callable[[], Awaitable[Any] | Any]] = [
            getattr(self, name) for name in dir(self) if name.startswith("call_")
        ]

    async def one(self) -> None:
        """One call. Whatever it raises but an error of jobq is a bug."""
        chosen = self.random.choice(self.made)
        try:
            done = chosen()
            if isinstance(done, Awaitable):
                await asyncio.wait_for(done, 60)
        except JobqError:
            pass

    def any(self) -> Any:
        return anything(self.random)

    def id(self) -> Any:
        return mostly("a", "b", "c", "d")(self.random)

    def timeout(self) -> Any:
        """No wait at all, or a value that is none: a long one would be waited for, rightly."""
        value = mostly(0)(self.random)
        return 0 if value is None or isinstance(value, (int, float, timedelta)) else value

    # ── producing ──

    async def call_enqueue(self) -> None:
        await self.task.options(**some_options(self.random)).enqueue(self.any(), extra=self.any())

    async def call_enqueue_many(self) -> None:
        calls = [(n, self.any()) for n in range(self.random.randrange(4))]
        await self.task.options(**some_options(self.random)).enqueue_many(
            calls if self.random.random() < 0.8 else self.any()
        )

    async def call_enqueue_bound(self) -> None:
        bound = [self.task.options(**some_options(self.random)).bind(self.any()) for _ in range(3)]
        await self.queue.enqueue_many(bound)

    async def call_by_name(self) -> None:
        await self.queue.task_by_name(self.any(), **some_options(self.random)).enqueue(self.any())

    async def call_flow(self) -> None:
        async with self.queue.flow(id=mostly(None, "flow")(self.random)) as flow:
            first = flow.add(self.task.options(**some_options(self.random)), self.any())
            flow.add(self.task, [first.ref, self.any()])

    async def call_request(self) -> None:
        await self.task.options(call_timeout=self.timeout()).call(self.any())

    # ── one job ──

    async def call_job(self) -> None:
        job = self.queue.job(self.id())
        operations: tuple[Callable[[], Awaitable[Any]], ...] = (
            job.info,
            job.state,
            job.cancel,
            job.rerun,
            job.promote,
            job.remove,
            job.logs,
            lambda: job.reprioritise(self.any()),
            lambda: job.reschedule(delay=self.any()),
            lambda: job.reschedule(at=self.any()),
            lambda: job.update(self.any()),
            lambda: job.signal(self.any(), self.any()),
            lambda: job.wait(timeout=self.timeout()),
            lambda: job.result(timeout=self.timeout()),
            lambda: job.reschedule(delay=self.any(), at=self.any()),
            lambda: job.cancel(cascade=self.any()),
            lambda: job.as_actor(self.any()).cancel(),
        )
        await self.random.choice(operations)()

    # ── the queue ──

    async def call_queue(self) -> None:
        queue, random = self.queue, self.random
        operations: tuple[Callable[[], Awaitable[Any]], ...] = (
            queue.counts,
            queue.stats,
            queue.workers,
            queue.pause,
            queue.resume,
            queue.limits,
            queue.schedules,
            lambda: queue.metrics(minutes=mostly(1, 60)(random)),
            lambda: queue.purge(self.any(), self.any()),
            lambda: queue.remove(self.any(), self.any()),
            lambda: queue.purge(
                mostly("completed", "failed", "waiting", "delayed")(random),
                older_than=mostly(0)(random),
                max_jobs=mostly(None, 5)(random),
            ),
            lambda: queue.rerun(self.id()),
            lambda: queue.remove(self.id()),
            lambda: queue.rerun(name=self.any()),
            lambda: queue.purge(name=self.any()),
            lambda: queue.as_actor(self.any()).pause(),
            lambda: queue.hold(self.any(), mostly(None)(random)),
            lambda: queue.release_hold(mostly(None)(random)),
            lambda: queue.flow_tree(self.id()),
            lambda: queue.rerun_flow(mostly("flow", "a")(random)),
            lambda: queue.lock(self.task, self.any()).info(),
            lambda: queue.lock(self.task.options(unique=True), self.any()).release(
                job_id=mostly(None, "a")(random)
            ),
            self.select,
            lambda: queue.set_limits(**{random.choice(LIMITS): self.any()}),
            lambda: queue.unschedule(self.any()),
            lambda: queue.pause_schedule(self.any()),
            lambda: queue.resume_schedule(self.any()),
            lambda: queue.run_schedule(self.any()),
            lambda: queue.schedule(self.any(), mostly(Every(60))(random), self.task, self.any()),
            lambda: queue.schedule(self.any(), Every(60), self.any()),
        )
        await random.choice(operations)()

    async def select(self) -> None:
        """An operation on all jobs that match."""
        random = self.random
        selection = self.queue.select(
            mostly("failed", "waiting", "completed")(random), **self.criteria()
        )
        if random.random() < 0.3:
            await selection.preview(samples=mostly(2)(random), max_jobs=mostly(50)(random))
            return
        act = random.choice((selection.cancel, selection.rerun, selection.purge))
        await act(
            pace=mostly(None, 1000)(random),
            max_jobs=mostly(2, 3)(random),
            cursor=mostly(None)(random),
        )

    def criteria(self) -> Any:
        """A few criteria of find and select."""
        given = {
            "name": mostly("work", "w*"),
            "error": mostly("*", "Reject*"),
            "meta": mostly({"a": "b"}),
            "arguments": mostly({"0": 1}, {"n": "x"}),
            "created_after": mostly(None),
            "ended_before": mostly(None),
        }
        chosen = self.random.sample(sorted(given), self.random.choice((0, 1, 1, 2)))
        return {name: given[name](self.random) for name in chosen}

    async def call_find(self) -> None:
        listing = self.queue.find(
            state=mostly(None, "waiting", "failed")(self.random),
            key=mostly(None)(self.random),
            oldest_first=mostly(True, False)(self.random),
            max_jobs=mostly(5)(self.random),
            **self.criteria(),
        )
        async for _ in listing:
            pass

    async def call_events(self) -> None:
        stream = self.queue.events(after=mostly("0")(self.random))
        with contextlib.suppress(TimeoutError):  # there may be none yet, and a stream waits
            async with asyncio.timeout(0.1):
                async for _ in stream:
                    break

    # ── policies and constructors ──

    def call_policy(self) -> None:
        make: tuple[Callable[[], Any], ...] = (
            lambda: Retry(mostly(3)(self.random), base=self.any()),
            lambda: Retry(delays=self.any()),
            lambda: Retry(3, on=self.any()),
            lambda: Retry(3, jitter=self.any(), factor=self.any()),
            lambda: Retry.after(self.any()),
            lambda: Unique(self.any()),
            lambda: Unique(period=self.any(), mode=mostly("throttle")(self.random)),
            lambda: Rate(self.any(), per=self.any()),
            lambda: Bucket(self.any(), refill=self.any()),
            lambda: Cron(self.any()),
            lambda: Cron("* * * * *", tz=self.any()),
            lambda: Cron("* * * * *", start=self.any()),
            lambda: Every(self.any(), times=self.any()),
            lambda: Retention(completed=self.any(), count=self.any()),
        )
        self.random.choice(make)()

    def call_queue_constructor(self) -> None:
        options = {
            "tenant": mostly(None),
            "mode": mostly("plain", "keyed"),
            "limit": mostly(1),
            "key_limit": mostly(1),
            "rate": mostly(None),
            "limits_version": mostly(1),
            "partitions": mostly(1),
            "retention": mostly(None),
            "dead_letters": mostly("dead"),
            "codec": mostly("json"),
            "max_payload": mostly(100),
            "max_waiting": mostly(5),
            "event_meta": mostly(("a",)),
            "url": mostly("memory://", "sqlite://[::1", "valkey://h:x", "://", "sqlite:///"),
        }
        chosen = {
            name: options[name](self.random) for name in self.random.sample(sorted(options), 2)
        }
        Queue(mostly("q")(self.random), **chosen)

    def call_worker_constructor(self) -> None:
        Worker(
            mostly(self.queue)(self.random),
            concurrency=mostly(1)(self.random),
            lease=mostly(15)(self.random),
            drain=mostly(1)(self.random),
            last_chance=mostly(60)(self.random),
            name=mostly(None)(self.random),
        )

    def call_task_decorator(self) -> None:
        options = {
            "name": mostly("other"),
            "executor": mostly("thread"),
            "schedule": mostly(None),
            **OPTIONS,
        }
        chosen = {
            name: options[name](self.random) for name in self.random.sample(sorted(options), 2)
        }
        Queue("decorated", "memory://").task(**chosen)(_plain)


def _plain(n: Any = None, extra: Any = None) -> None:
    """A task's function."""


async def test_a_fuzzed_call_succeeds_or_is_refused_and_harms_no_other(url: str) -> None:
    random = Random(SEED)
    queue = Queue("fuzzed", url)
    task = queue.task(name="work")(_plain)
    async with queue:
        calls = Calls(queue, task, random)
        for round in range(-(-CALLS // ROUND)):
            neighbours = [task.options(id=f"good-{round}-{n}").enqueue(n) for n in range(5)]
            strange = [calls.one() for _ in range(ROUND)]
            together: list[Awaitable[Any]] = [
                *strange[: ROUND // 2],
                *neighbours,
                *strange[ROUND // 2 :],
            ]
            for done in await asyncio.gather(*together, return_exceptions=True):
                if isinstance(done, BaseException):
                    raise AssertionError(f"round {round}: {done!r}") from done
            await _everything_can_be_listed(queue)


async def _everything_can_be_listed(queue: Queue) -> None:
    seen = 0
    async for info in queue.find(max_jobs=200):
        repr(info)
        seen += 1
    repr((await queue.stats(), await queue.limits(), await queue.schedules(), await queue.counts()))


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Worker("q"), "Queue"),  # type: ignore[arg-type]
        (lambda: open_store("sqlite://[::1"), "URL"),
        (lambda: open_store("valkey://host:port"), "port"),
        (lambda: Queue("q", "memory://").task(bind=True)(_plain), "current_job"),  # type: ignore[call-overload]
        (lambda: Queue("q", "memory://").task_by_name("work", countdown=5), "delay="),  # type: ignore[call-arg]
    ],
)
def test_a_common_mistake_is_told_what_to_do(make: Callable[[], Any], says: str) -> None:
    with pytest.raises(JobqError) as refused:
        make()
    assert says in str(refused.value)
