"""Renamed and changed tasks: jobs that were stored under an old name still run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from jobq import ConfigError, Every, Queue, Retry, State, Unique, Worker, current_job
from tests.api.deferrals import deferral


@dataclass
class Amount:
    cents: int
    currency: str


async def test_a_renamed_task_runs_jobs_of_its_old_names(queue: Queue) -> None:
    @queue.task(aliases=["bill", "invoice"])
    async def charge(order: int) -> str:
        return f"{current_job().name} {order}"

    old = [await queue.task_by_name(name).enqueue(7) for name in ("bill", "invoice")]
    async with Worker(queue):
        assert [await job.result(timeout=20) for job in old] == ["bill 7", "invoice 7"]
        assert await charge.call(8) == "charge 8"


async def test_an_upgrader_turns_old_arguments_into_new_ones(queue: Queue) -> None:
    def from_dollars(order: int, dollars: float) -> dict[str, Any]:
        return {"order": order, "amount": Amount(round(dollars * 100), "USD")}

    def from_cents(order: int, cents: int) -> tuple[Any, ...]:
        return order, Amount(cents, "USD")

    @queue.task(name="charge.3", aliases={"charge": from_dollars, "charge.2": from_cents})
    async def charge(order: int, amount: Amount) -> str:
        return f"{order}: {amount.cents} {amount.currency}"

    first = await queue.task_by_name("charge").enqueue(1, dollars=2.5)
    second = await queue.task_by_name("charge.2").enqueue(2, 250)
    async with Worker(queue):
        assert await first.result(timeout=20) == "1: 250 USD"
        assert await second.result(timeout=20) == "2: 250 USD"
        assert await charge.call(3, Amount(9, "EUR")) == "3: 9 EUR"


async def test_old_arguments_are_decoded_by_the_upgraders_annotations(queue: Queue) -> None:
    def upgrade(amount: Amount) -> dict[str, Any]:
        assert isinstance(amount, Amount)
        return {"cents": amount.cents}

    @queue.task(aliases={"old": upgrade})
    def new(cents: int) -> int:
        return cents

    job = await queue.task_by_name("old").enqueue(Amount(5, "EUR"))
    async with Worker(queue):
        assert await job.result(timeout=20) == 5


async def test_an_upgrader_gets_the_results_that_its_job_waited_for(queue: Queue) -> None:
    def upgrade(total: int) -> dict[str, Any]:
        return {"cents": total * 100}

    @queue.task
    async def count() -> int:
        return 7

    @queue.task(aliases={"old": upgrade})
    async def new(cents: int) -> int:
        return cents

    async with queue.flow() as flow:
        job = flow.add(queue.task_by_name("old"), flow.add(count).ref)
    async with Worker(queue):
        assert await job.result(timeout=20) == 700


@pytest.mark.parametrize(
    ("upgraded", "said"),
    [
        (lambda n: n, "must return a dict of named arguments, or a list or tuple"),
        (lambda n: "text", "must return a dict of named arguments, or a list or tuple"),
        (lambda n: 1 / 0, "division by zero"),
    ],
    ids=["a number", "a text", "an error"],
)
async def test_arguments_that_cannot_be_upgraded_fail_their_job_only(
    queue: Queue, upgraded: Any, said: str
) -> None:
    @queue.task(aliases={"old": upgraded}, retry=0)
    async def new(cents: int) -> int:
        return cents

    bad = await queue.task_by_name("old").enqueue(1)
    async with Worker(queue):
        info = await bad.wait(timeout=20)
        assert info.state is State.FAILED
        assert info.failure is not None
        assert said in info.failure.message
        assert await new.call(2) == 2


async def test_upgraded_arguments_that_do_not_fit_are_left_to_other_workers(queue: Queue) -> None:
    @queue.task(aliases={"old": lambda n: {"n": n}}, retry=0)
    async def new(cents: int) -> int:
        return cents

    bad = await queue.task_by_name("old").enqueue(1)
    async with Worker(queue):
        said = await deferral(bad)
    assert "-> 'int': got an unexpected keyword argument 'n'" in said


async def test_the_policies_of_the_task_hold_for_its_old_names(queue: Queue) -> None:
    @queue.task(aliases=["old"], retry=Retry(2, base=0), max_stalls=7, timeout=60)
    async def new() -> None:
        raise ValueError("again")

    job = await queue.task_by_name("old").enqueue()
    async with Worker(queue):
        info = await job.wait(timeout=20)
    assert (info.failures, info.state) == (3, State.FAILED)
    assert (info.options.retry, info.options.max_stalls) == (Retry(2, base=0), 7)


async def test_a_schedule_belongs_to_the_present_name_only(queue: Queue) -> None:
    @queue.task(aliases=["old"], schedule=Every(3600))
    async def new() -> None: ...

    assert list(queue._context.planned) == ["new"]


async def test_a_batch_task_can_be_renamed(queue: Queue) -> None:
    @queue.batch_task(size=10, aliases=["old"])
    async def new(items: list[int]) -> list[int]:
        return [item * 2 for item in items]

    jobs = [await queue.task_by_name("old").enqueue(n) for n in range(3)]
    async with Worker(queue):
        assert [await job.result(timeout=20) for job in jobs] == [0, 2, 4]


async def test_unique_jobs_of_the_old_and_the_new_name_are_different_jobs(queue: Queue) -> None:
    """The lock contains the stored name. The guide says so."""

    @queue.task(aliases=["old"], unique=Unique("n"))
    async def new(n: int) -> None: ...

    await queue.task_by_name("old", unique=Unique("n")).enqueue(n=1)
    assert not (await new.enqueue(n=1)).duplicate


@pytest.mark.parametrize(
    ("aliases", "said"),
    [
        ("old", "give a list of old names"),
        (7, "give a list of old names"),
        (["new"], "'new' is the task's present name"),
        (["a b\n"], "name"),
        ([7], "name"),
        ({"old": 7}, "which upgrades 'old', is not a plain function"),
        (["taken"], "already has a task 'taken'"),
    ],
)
def test_wrong_aliases_are_refused_when_the_task_is_defined(aliases: Any, said: str) -> None:
    queue = Queue("api", "memory://")

    @queue.task
    async def taken() -> None: ...

    async def new() -> None: ...

    with pytest.raises(ConfigError, match=said):
        queue.task(aliases=aliases)(new)


def test_async_upgraders_and_upgraders_of_batches_are_refused() -> None:
    queue = Queue("api", "memory://")

    async def upgrade() -> dict[str, Any]:
        return {}

    async def new(items: list[int]) -> list[int]:
        return items

    with pytest.raises(ConfigError, match="is not a plain function"):
        queue.task(aliases={"old": upgrade})(new)  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match="convert old items in the task itself"):
        queue.batch_task(size=2, aliases={"old": lambda item: [item]})(new)
