"""Enqueueing: options, duplicates, bulk calls, and what is refused before anything is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from jobq import InvalidJob, JobqError, PayloadTooLarge, Queue, Retry, State, Task, Unique, Worker


@pytest.fixture
def charge(queue: Queue) -> Task[[str, int], str]:
    @queue.task
    async def charge(tenant: str, invoice: int) -> str:
        return f"{tenant}-{invoice}"

    return charge


async def test_a_job_is_stored_as_it_was_called(charge: Task[..., str]) -> None:
    job = await charge.enqueue("acme", invoice=7)
    info = await job.info()
    assert (info.name, info.args, dict(info.kwargs), info.state) == (
        "charge",
        ("acme",),
        {"invoice": 7},
        State.WAITING,
    )
    assert not job.duplicate
    assert job.snapshot is None


async def test_ids_are_made_in_the_order_of_time(charge: Task[[str, int], str]) -> None:
    ids = [(await charge.enqueue("acme", n)).id for n in range(20)]
    assert ids == sorted(set(ids))


async def test_options_reach_the_record(charge: Task[[str, int], str]) -> None:
    job = await charge.options(id="inv-8", delay=timedelta(hours=1), priority=5).enqueue("acme", 8)
    info = await job.info()
    assert (info.id, info.priority, info.state) == ("inv-8", 5, State.DELAYED)
    assert info.due_at is not None
    assert info.due_at - info.created_at == timedelta(hours=1)


async def test_options_leave_the_task_itself_alone(charge: Task[[str, int], str]) -> None:
    urgent = charge.options(priority=9)
    assert (await (await charge.enqueue("acme", 1)).info()).priority == 0
    assert (await (await urgent.options(delay=5).enqueue("acme", 2)).info()).priority == 9


async def test_at_replaces_delay_and_delay_replaces_at(
    charge: Task[[str, int], str],
) -> None:
    later = datetime(2100, 1, 1, tzinfo=UTC)
    info = await (await charge.options(delay=5).options(at=later).enqueue("acme", 1)).info()
    assert info.due_at == later
    info = await (await charge.options(at=later).options(delay=0).enqueue("acme", 1)).info()
    assert info.state is State.WAITING


async def test_an_id_in_use_is_a_duplicate_with_the_job_as_it_is(
    queue: Queue, charge: Task[[str, int], str]
) -> None:
    first = await charge.options(id="inv-1").enqueue("acme", 1)
    again = await charge.options(id="inv-1").enqueue("acme", 999)
    assert (again.id, again.duplicate) == (first.id, True)
    assert again.snapshot is not None
    assert (again.snapshot.state, again.snapshot.args) == (State.WAITING, ("acme", 1))
    async with Worker(queue):
        await first.result(timeout=10)
    done = await charge.options(id="inv-1").enqueue("acme", 1)
    assert done.snapshot is not None
    assert (done.snapshot.state, done.snapshot.result) == (State.COMPLETED, "acme-1")


async def test_a_duplicate_may_be_the_job_of_another_task(
    queue: Queue, charge: Task[[str, int], str]
) -> None:
    await queue.task_by_name("other").options(id="x").enqueue(1)
    job = await charge.options(id="x").enqueue("acme", 1)
    assert (job.duplicate, job.name) == (True, "other")


async def test_equal_calls_are_one_job_until_it_ends(queue: Queue) -> None:
    @queue.task(unique=Unique("invoice"))
    async def once(invoice: int, note: str = "") -> None: ...

    first = await once.enqueue(7)
    assert (await once.enqueue(invoice=7, note="again")).id == first.id
    assert (await once.enqueue(8)).id != first.id


async def test_unique_true_means_all_arguments(queue: Queue) -> None:
    @queue.task(unique=True)
    async def once(a: int, b: int = 2) -> None: ...

    first = await once.enqueue(1)
    assert (await once.enqueue(1, b=2)).duplicate
    assert not (await once.enqueue(1, 3)).duplicate
    assert not (await once.options(unique=False).enqueue(1)).duplicate
    assert first.id


async def test_a_key_is_a_parameter_of_the_task_or_given_by_the_call(queue: Queue) -> None:
    @queue.task(key="tenant")
    async def per_tenant(tenant: int | str, n: int = 0) -> None: ...

    assert (await (await per_tenant.enqueue("acme")).info()).key == "acme"
    assert (await (await per_tenant.enqueue(tenant=7)).info()).key == "7"
    assert (await (await per_tenant.options(key="other").enqueue("acme")).info()).key == "other"


async def test_jobs_enqueued_concurrently_are_all_stored(
    queue: Queue, charge: Task[[str, int], str]
) -> None:
    jobs = await asyncio.gather(*(charge.enqueue("acme", n) for n in range(300)))
    assert len({job.id for job in jobs}) == 300
    assert (await queue.counts())[State.WAITING] == 300


async def test_many_calls_may_come_from_a_generator(
    queue: Queue, charge: Task[[str, int], str]
) -> None:
    jobs = await charge.enqueue_many(
        ("acme", n) if n % 2 else {"tenant": "acme", "invoice": n} for n in range(2500)
    )
    assert len({job.id for job in jobs}) == 2500
    assert (await queue.counts())[State.WAITING] == 2500
    info = await jobs[2400].info()
    assert info.kwargs == {"tenant": "acme", "invoice": 2400}


async def test_a_generator_is_read_as_its_jobs_are_stored(
    queue: Queue, charge: Task[[str, int], str]
) -> None:
    read = 0

    def calls() -> Any:
        nonlocal read
        for read in range(1, 5001):
            yield ("acme", read if read < 1500 else "\ud800")

    with pytest.raises(InvalidJob, match="call 1499"):
        await charge.enqueue_many(calls())
    assert read == 1500
    assert (await queue.counts())[State.WAITING] == 1000


async def test_calls_of_several_tasks_and_options_go_together(
    queue: Queue, charge: Task[[str, int], str]
) -> None:
    @queue.task
    def refund(invoice: int) -> int:
        return -invoice

    calls = [
        charge.bind("acme", 1),
        refund.options(priority=3).bind(2),
        charge.options(id="x").bind("acme", 3),
    ]
    jobs = await queue.enqueue_many(calls)
    assert [job.name for job in jobs] == ["charge", "refund", "charge"]
    assert jobs[2].id == "x"
    again = await queue.enqueue_many(calls)
    assert [job.id for job in again] == [job.id for job in jobs]
    assert all(job.duplicate for job in again)


async def test_a_call_of_another_queue_is_refused(
    queue: Queue, url: str, charge: Task[[str, int], str]
) -> None:
    other = Queue("other", url)
    with pytest.raises(InvalidJob, match="belongs to queue 'other'"):
        await queue.enqueue_many([charge.bind("acme", 1), other.task_by_name("charge").bind(1)])
    with pytest.raises(InvalidJob, match=r"task\.bind"):
        await queue.enqueue_many([("acme", 1)])  # type: ignore[list-item]
    assert sum((await queue.counts()).values()) == 0


async def test_one_call_can_go_to_several_queues(
    queue: Queue, url: str, charge: Task[[str, int], str]
) -> None:
    async with Queue("left", url) as left, Queue("right", url) as right:
        jobs = await charge.broadcast([left, right], "acme", 1)
        assert [job.queue for job in jobs] == ["left", "right"]
        assert (await left.counts())[State.WAITING] == (await right.counts())[State.WAITING] == 1


async def test_a_task_known_by_name_only_takes_any_arguments(queue: Queue) -> None:
    job = await queue.task_by_name("elsewhere", priority=4, key="k").enqueue(1, two=2)
    info = await job.info()
    assert (info.name, info.args, info.kwargs, info.priority, info.key) == (
        "elsewhere",
        (1,),
        {"two": 2},
        4,
        "k",
    )


async def test_calling_a_task_runs_the_function_here(
    queue: Queue, charge: Task[[str, int], str]
) -> None:
    @queue.task
    def double(n: int) -> int:
        """Twice."""
        return 2 * n

    assert double(4) == 8
    assert (double.__name__, double.__doc__) == ("double", "Twice.")  # type: ignore[attr-defined]
    assert sum((await queue.counts()).values()) == 0


@dataclass
class Odd:
    items: list[Any]


def _options(**options: Any) -> Callable[[Task[..., Any]], Any]:
    return lambda task: task.options(**options).enqueue("acme", 1)


REFUSALS: dict[str, tuple[Callable[[Task[..., Any]], Any], str]] = {
    "an argument that cannot be encoded": (
        lambda t: t.enqueue("a", Odd([1, {"x": object()}])),
        r"args\[1\]\.items\[1\]\['x'\]",
    ),
    "NaN": (lambda t: t.enqueue("acme", float("nan")), r"args\[1\]: nan"),
    "infinity": (lambda t: t.enqueue("acme", [1, float("inf")]), r"args\[1\]\[1\]: inf"),
    "a missing argument": (lambda t: t.enqueue("acme"), "invoice"),
    "a strange argument": (lambda t: t.enqueue("acme", 1, invoise=1), "invoise"),
    "an option as an argument": (lambda t: t.enqueue("acme", 1, delay=5), r"options\(delay=…\)"),
    "an unknown option": (_options(dealy=5), "unknown option 'dealy'.*did you mean 'delay'"),
    "a long id": (_options(id="x" * 257), "256"),
    "an empty id": (_options(id=""), "id='' is empty"),
    "an id with a control character": (_options(id="a\nb"), "position 1"),
    "an id with braces": (_options(id="a{b}"), "braces"),
    "a negative delay": (_options(delay=-1), "delay=-1"),
    "a delay that is no time": (_options(delay="soon"), "delay='soon'"),
    "a time without zone": (_options(at=datetime(2030, 1, 1)), "no time zone"),
    "a delay and a time": (
        _options(delay=1, at=datetime(2030, 1, 1, tzinfo=UTC)),
        "give one of them",
    ),
    "a priority below 0": (_options(priority=-1), "priority=-1"),
    "a priority above the range": (_options(priority=2**21), "priority=2097152"),
    "a priority that is no number": (_options(priority="high"), "priority='high'"),
    "a ttl of 0": (_options(ttl=0), "ttl=0"),
    "a negative ttl": (_options(ttl=-5), "ttl=-5"),
    "a ttl of half a millisecond": (_options(ttl=0.0005), "whole number of milliseconds"),
    "a result_ttl of 0": (_options(result_ttl=0), "result_ttl=0"),
    "a timeout of 0": (_options(timeout=0), "timeout=0"),
    "negative retries": (_options(retry=-1), "max_retries=-1"),
    "a function in a call's retry": (_options(retry=Retry(delays=lambda n, e: 1)), "function"),
    "error classes in a call's retry": (_options(retry=Retry(on=ValueError)), "on="),
    "a strange unique": (_options(unique="yes"), "unique='yes'"),
    "a unique field that is no parameter": (_options(unique=Unique("invoise")), "invoise"),
    "max_stalls below 0": (_options(max_stalls=-1), "max_stalls=-1"),
    "a cost of 0": (_options(cost=0), "cost=0"),
    "a key that is no string": (_options(key=["a"]), r"key=\['a'\]"),
    "jobs to wait for that are none": (_options(after=["id"]), "'id' is not a job"),
    "a strange child policy": (_options(on_child_failure="panic"), "panic"),
    "lifo that is no bool": (_options(lifo=1), "lifo=1"),
}


@pytest.mark.parametrize("case", REFUSALS)
async def test_bad_input_is_refused_by_name_before_anything_is_stored(
    queue: Queue, charge: Task[[str, int], str], case: str
) -> None:
    attempt, message = REFUSALS[case]
    with pytest.raises(InvalidJob, match=message):
        await attempt(charge)
    assert sum((await queue.counts()).values()) == 0


async def test_a_payload_over_the_limit_is_refused_with_both_numbers(url: str) -> None:
    async with Queue("small", url, max_payload=100) as queue:
        with pytest.raises(
            PayloadTooLarge, match=r"of store take .* bytes encoded, more than the 100"
        ):
            await queue.task_by_name("store").enqueue("x" * 200)
        assert sum((await queue.counts()).values()) == 0


async def test_one_id_for_many_calls_is_refused(
    queue: Queue, charge: Task[[str, int], str]
) -> None:
    with pytest.raises(InvalidJob, match="id='x'"):
        await charge.options(id="x").enqueue_many([("a", 1), ("a", 2)])
    with pytest.raises(InvalidJob, match="neither a tuple"):
        await charge.enqueue_many(["acme"])  # type: ignore[list-item]
    assert sum((await queue.counts()).values()) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": "tenent"}, "did you mean 'tenant'"),
        ({"unique": Unique("invoise")}, "did you mean 'invoice'"),
        ({"retries": 3}, "unknown option 'retries'"),
        ({"executor": "thraed"}, "did you mean 'thread'"),
        ({"executor": "thread"}, "is async"),
        ({"schedule": "0 6 * * *"}, "schedule="),
        ({"name": "a{b}"}, "name="),
    ],
)
async def test_a_task_with_bad_options_is_refused_where_it_is_defined(
    queue: Queue, options: dict[str, Any], message: str
) -> None:
    async def charge(tenant: str, invoice: int) -> None: ...

    with pytest.raises(JobqError, match=message):
        queue.task(**options)(charge)
    assert not queue.tasks
