"""Tasks: options of a task and of a call, and arguments that are decoded by annotation."""

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from jobq import InvalidJob, Queue, Retry, Worker, current_job

shop = Queue("shop", "memory://")


@dataclass
class Item:
    sku: str
    count: int


@dataclass
class Receipt:
    order: int
    cents: int


@shop.task
async def charge(order: int, items: list[Item]) -> Receipt:
    assert isinstance(items[0], Item)  # decoded by the annotation
    return Receipt(order, sum(item.count for item in items) * 250)


@shop.task(priority=10, name="shop.resize")
def resize(picture: str, width: int = 800) -> str:
    return f"{picture}@{width}"  # a plain function: it runs in a thread


@shop.task
async def notify(order: int) -> str:
    return f"order {order}, request {current_job().meta['request']}"


def from_inches(picture: str, inches: float) -> dict[str, Any]:
    return {"picture": picture, "width": round(inches * 96)}


@shop.task(name="crop.2", aliases={"crop": from_inches})
def crop(picture: str, width: int) -> str:
    return f"{picture} cropped to {width}"


async def options() -> None:
    items = [Item("nut", 3)]
    await charge.options(delay=0.1).enqueue(1, items)
    await charge.options(delay=timedelta(hours=1)).enqueue(2, items)
    await charge.options(at=datetime.now(UTC) + timedelta(days=1)).enqueue(3, items)
    await charge.options(priority=5).enqueue(4, items)
    await charge.options(lifo=True).enqueue(5, items)
    await charge.options(ttl=60).enqueue(6, items)


async def given_ids() -> None:
    first = await charge.options(id="order-7").enqueue(7, [Item("nut", 1)])
    again = await charge.options(id="order-7").enqueue(7, [Item("nut", 1)])
    assert not first.duplicate
    assert again.duplicate  # nothing was added


async def many() -> None:
    await resize.enqueue_many([("a.png",), ("b.png", 1024), {"picture": "c.png", "width": 64}])
    await shop.enqueue_many(
        [resize.bind("d.png"), charge.options(priority=1).bind(8, [Item("bolt", 2)])]
    )


async def carried() -> None:
    job = await notify.options(meta={"request": "r-17"}).enqueue(7)
    print(await job.result(timeout=10))
    info = await job.info()
    assert info.meta == {"request": "r-17"}
    assert info.options.retry == Retry(3)  # the options in effect: here, the task's default


async def renamed() -> None:
    old = await shop.task_by_name("crop").enqueue("cat.png", inches=2.5)  # by an old producer
    print(await old.result(timeout=10))


async def refused() -> None:
    for wrong in (
        lambda: charge.options(delay=-1),
        lambda: charge.options(colour="red"),  # type: ignore[call-arg]
        lambda: charge.bind(9, [Item("nut", 1), object()]),  # type: ignore[list-item]
        lambda: charge.bind(9),  # type: ignore[call-arg]
    ):
        try:
            wrong()
        except InvalidJob as error:
            print(f"refused: {error}")


async def main() -> None:
    async with shop:
        await options()
        await given_ids()
        await many()
        await refused()
        async with Worker(shop, concurrency=10):
            print(await shop.job("order-7").result(timeout=10))
            print(await charge.call(10, [Item("nut", 4)]))
            await carried()
            await renamed()
        print({state.value: n for state, n in (await shop.counts()).items() if n})
    print(resize("here.png"))  # a direct call runs the function


if __name__ == "__main__":
    asyncio.run(main())
