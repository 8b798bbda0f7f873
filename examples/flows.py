"""Flows: jobs that wait for other jobs, enqueued all together or not at all."""

import asyncio

from jobq import InvalidJob, Job, JobFailed, Queue, Reject, Worker, chain, chord, group

shop = Queue("shop", "memory://")


in_stock = {"nut": 3, "bolt": 4, "hammer": 6}


@shop.task
async def price(item: str) -> int:
    if item not in in_stock:
        raise Reject(f"no {item} in stock")
    return in_stock[item]


@shop.task
async def total(prices: list[int]) -> int:
    return sum(prices)


@shop.task
async def bill(customer: str, amount: int) -> str:
    return f"{customer} owes {amount}"


@shop.task
async def double(n: int) -> int:
    return 2 * n


async def usual_shapes() -> None:
    last = await chain(price, double, double, first=("nut",))
    every = await group(price, [("nut",), ("bolt",)])
    summed = await chord(price, [("nut",), ("bolt",)], total)
    print(
        await last.result(timeout=10),
        await every.result(timeout=10),
        await summed.result(timeout=10),
    )

    print(await shop.flow_tree(summed.id))


async def run_again(never: Job[str]) -> None:
    in_stock["unicorn"] = 7_000
    print(f"{await shop.rerun_flow(never.id)} members run again")
    print(await shop.job(never.id).result(timeout=10))


async def main() -> None:
    async with shop, Worker(shop):
        async with shop.flow() as flow:
            prices = [flow.add(price, item) for item in ("nut", "bolt", "hammer")]
            # `ref` stands for the job's result: `total` waits for all prices.
            summed = flow.add(total, [p.ref for p in prices])
            billed = flow.add(bill, "ada", summed.ref)
        print(await billed.result(timeout=10))

        async with shop.flow() as flow:
            rare = flow.add(price, "unicorn")
            never = flow.add(bill, "grace", rare.ref)
        try:
            await never.result(timeout=10)
        except JobFailed as error:
            print(f"a failed child fails its parent: {error.failure.reason}")
        await run_again(never)

        try:
            async with shop.flow() as flow:
                flow.add(price.options(id="same"), "nut")
                flow.add(price.options(id="same"), "bolt")
        except InvalidJob as error:
            print(f"nothing stored: {error}")

        await usual_shapes()


if __name__ == "__main__":
    asyncio.run(main())
