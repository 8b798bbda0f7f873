"""Puts form batches, and a bad job fails only its own caller."""

from __future__ import annotations

import asyncio
from itertools import count

from jobq.client.sender import Sender
from jobq.core.records.states import State
from jobq.errors import InvalidJob, StoreUnavailable

from .kit import Bench, Proxy, eventually


def sizes(line: Proxy) -> list[int]:
    """How many specs each put carried."""
    return [len(args[0]) for args, _ in line.of("put")]


async def test_a_task_that_puts_one_job_after_another_has_each_sent_at_once(
    bench: Bench, line: Proxy
) -> None:
    sender = Sender(line)  # type: ignore[arg-type]
    await sender.put(bench.spec("work", 1))
    before = asyncio.all_tasks()
    result = await sender.put(bench.spec("work", 2))
    assert (result.state, result.duplicate) == (State.WAITING, False)
    assert sizes(line) == [1, 1]
    assert asyncio.all_tasks() <= before


async def test_puts_of_tasks_that_are_ready_at_the_same_time_ride_together(
    bench: Bench, line: Proxy
) -> None:
    sender = Sender(line)  # type: ignore[arg-type]
    specs = [bench.spec("work", n) for n in range(100)]
    results = await asyncio.gather(*(sender.put(spec) for spec in specs))
    assert [result.id for result in results] == [spec.id for spec in specs]
    assert sizes(line) == [100]


async def test_puts_made_while_one_is_in_flight_ride_in_the_next(bench: Bench, line: Proxy) -> None:
    under_way, go_on = asyncio.Event(), asyncio.Event()

    async def before(method: str, args: object) -> None:
        under_way.set()
        await go_on.wait()

    line.before = before
    sender = Sender(line)  # type: ignore[arg-type]
    first = asyncio.create_task(sender.put(bench.spec("work", 0)))
    await under_way.wait()
    others = [asyncio.create_task(sender.put(bench.spec("work", n))) for n in range(1, 10)]
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(first, *others)
    assert sizes(line) == [1, 9]


async def test_there_is_one_put_in_flight_and_none_is_larger_than_allowed(
    bench: Bench, line: Proxy
) -> None:
    in_flight = most = 0

    async def before(method: str, args: object) -> None:
        nonlocal in_flight, most
        in_flight += 1
        most = max(most, in_flight)

    async def after(method: str, answer: object) -> None:
        nonlocal in_flight
        in_flight -= 1

    line.before, line.after = before, after
    sender = Sender(line, max_batch=10)  # type: ignore[arg-type]
    specs = [bench.spec("work", n) for n in range(95)]
    singles = [sender.put(spec) for spec in specs[:25]]
    results = await asyncio.gather(*singles, sender.put_many(specs[25:]))
    assert [r.id for r in results[:25]] + [r.id for r in results[25]] == [spec.id for spec in specs]  # type: ignore[attr-defined]
    assert most == 1
    assert max(sizes(line)) == 10


async def test_a_store_that_works_by_itself_is_sent_many_callers_in_two_halves(
    bench: Bench, line: Proxy
) -> None:
    line.lanes = 2
    in_flight, both = 0, asyncio.Event()

    async def together(method: str, args: object) -> None:
        nonlocal in_flight
        in_flight += 1
        if in_flight == 2:
            both.set()
        async with asyncio.timeout(5):
            await both.wait()

    line.before = together
    sender = Sender(line)  # type: ignore[arg-type]
    specs = [bench.spec("work", n) for n in range(100)]
    results = await asyncio.gather(*(sender.put(spec) for spec in specs))
    assert [result.id for result in results] == [spec.id for spec in specs]
    assert sizes(line) == [50, 50]
    assert [spec.id for args, _ in line.of("put") for spec in args[0]] == [
        spec.id for spec in specs
    ]


async def test_many_callers_that_put_again_and_again_are_all_answered_whatever_the_store_does(
    bench: Bench, line: Proxy
) -> None:
    line.lanes = 2
    puts = count()
    line.lose = lambda method: method == "put" and next(puts) % 5 == 4
    sender = Sender(line)  # type: ignore[arg-type]
    answered: list[str] = []

    async def caller(rounds: int) -> None:
        for n in range(rounds):
            spec = bench.spec("work", n)
            while True:
                try:
                    await sender.put(spec)
                except StoreUnavailable:
                    continue
                break
            answered.append(spec.id)

    async with asyncio.timeout(20):
        await asyncio.gather(*(caller(n % 17) for n in range(100)))
    assert len(answered) == await bench.count(State.WAITING) == sum(n % 17 for n in range(100))


async def test_nothing_to_put_is_nothing_said(line: Proxy) -> None:
    assert await Sender(line).put_many([]) == []  # type: ignore[arg-type]
    assert line.calls == []


async def test_a_refused_spec_fails_its_own_caller_only(bench: Bench, line: Proxy) -> None:
    async def before(method: str, args: tuple[object, ...]) -> None:
        if any(spec.name == "bad" for spec in args[0]):  # type: ignore[attr-defined]
            raise InvalidJob("name='bad'")

    line.before = before
    sender = Sender(line)  # type: ignore[arg-type]
    specs = [bench.spec("bad" if n in (13, 47) else "work", n) for n in range(60)]
    results = await asyncio.gather(*(sender.put(spec) for spec in specs), return_exceptions=True)
    failed = [n for n, result in enumerate(results) if isinstance(result, BaseException)]
    assert failed == [13, 47]
    assert all(isinstance(results[n], InvalidJob) for n in failed)
    assert await bench.count(State.WAITING) == 58
    assert not any(result.duplicate for result in results if not isinstance(result, BaseException))


async def test_a_store_that_is_away_is_told_to_every_caller_and_forgotten(
    bench: Bench, line: Proxy
) -> None:
    sender = Sender(line)  # type: ignore[arg-type]
    line.down = True
    results = await asyncio.gather(
        *(sender.put(bench.spec("work", n)) for n in range(5)), return_exceptions=True
    )
    assert [type(result) for result in results] == [StoreUnavailable] * 5
    assert len({id(result) for result in results}) == 5
    line.down = False
    assert (await sender.put(bench.spec("work", 1))).state is State.WAITING


class _Odd(Exception):
    """An error that cannot be copied: its arguments are not those of its constructor."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{message} ({code})")


async def test_an_error_that_cannot_be_copied_is_told_to_every_caller(
    bench: Bench, line: Proxy
) -> None:
    async def before(method: str, args: object) -> None:
        raise _Odd("7", "broken")

    line.before = before
    sender = Sender(line)  # type: ignore[arg-type]
    puts = asyncio.gather(
        *(sender.put(bench.spec("work", n)) for n in range(5)), return_exceptions=True
    )
    assert [type(result) for result in await asyncio.wait_for(puts, 5)] == [_Odd] * 5


async def test_a_caller_that_gave_up_before_its_turn_puts_nothing(
    bench: Bench, line: Proxy
) -> None:
    go = asyncio.Event()

    async def before(method: str, args: object) -> None:
        await go.wait()

    line.before = before
    sender = Sender(line)  # type: ignore[arg-type]
    first = asyncio.ensure_future(sender.put(bench.spec("work", 0)))
    await eventually(lambda: line.of("put"))
    second, third = (asyncio.ensure_future(sender.put(bench.spec("work", n))) for n in (1, 2))
    await asyncio.sleep(0)
    second.cancel()
    go.set()
    assert (await first).state is State.WAITING
    assert (await third).state is State.WAITING
    assert await bench.count(State.WAITING) == 2


async def test_a_caller_cancelled_while_its_put_is_in_flight_holds_up_no_other(
    bench: Bench, line: Proxy
) -> None:
    go = asyncio.Event()

    async def before(method: str, args: object) -> None:
        await go.wait()

    line.before = before
    sender = Sender(line)  # type: ignore[arg-type]
    first, second = (asyncio.ensure_future(sender.put(bench.spec("work", n))) for n in range(2))
    await eventually(lambda: line.of("put"))
    first.cancel()
    go.set()
    assert (await second).state is State.WAITING
