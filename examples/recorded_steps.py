"""Steps that are not repeated when a job starts over, and the cursor of a long loop."""

import asyncio
from dataclasses import dataclass

from jobq import Queue, Retry, Worker, current_job

shop = Queue("shop", "memory://")


@dataclass
class Receipt:
    number: int
    cents: int


class Payments:
    """A payment service. It executes each idempotency key once, as such services do."""

    def __init__(self) -> None:
        self.receipts: dict[str, Receipt] = {}
        self.requests = 0

    async def charge(self, customer: str, cents: int, *, key: str) -> Receipt:
        self.requests += 1
        return self.receipts.setdefault(key, Receipt(len(self.receipts) + 1, cents))


payments = Payments()


async def book_courier(address: str) -> str:
    if current_job().attempt == 1:
        raise ConnectionError("the courier's site is down")
    return f"parcel to {address}"


@shop.task(retry=Retry(5, base=0.01))
async def order(customer: str, cents: int) -> str:
    job = current_job()
    # A retry does not charge again: it gets the receipt that the first run has recorded.
    receipt = await job.step("charge", payments.charge, customer, cents, key=f"order-{job.id}")
    parcel = await job.step("ship", book_courier, customer)
    return f"receipt {receipt.number}: {receipt.cents / 100:.2f}, {parcel}"


@shop.task
async def fan_out(countries: list[str]) -> dict[str, str]:
    job = current_job()
    # Steps may run at the same time. Each has a name of its own.
    taxes = await asyncio.gather(*(job.step(f"tax of {c}", look_up_tax, c) for c in countries))
    return dict(zip(countries, taxes, strict=True))


async def look_up_tax(country: str) -> str:
    return f"{10 + len(country)} %"


@shop.task(retry=Retry(5, base=0.01))
async def export(rows: int) -> str:
    job = current_job()
    done: int = job.saved or 0
    while done < rows:
        done = min(done + 100, rows)  # … and write these rows
        await job.save(done)
        if done == 500 and job.attempt == 1:
            raise ConnectionError("the disk is gone")  # the next run goes on at row 500
    return f"{done} rows in {job.attempt} runs"


@shop.task(retry=Retry(5, base=0.01))
def order_by_mail(customer: str) -> str:
    """In a plain function, a step is a plain function too."""
    job = current_job().sync
    number = job.step("number", lambda: 41 + job.attempt)
    if job.attempt == 1:
        raise ConnectionError("the printer is offline")
    return f"order {number} of {customer}"


async def main() -> None:
    async with shop, Worker(shop):
        job = await order.enqueue("ada", 4200)
        print(await job.result(timeout=10))
        print(f"requests to the payment service: {payments.requests}")
        for step in (await job.info()).steps:
            print(f"{step.name}: recorded by run {step.attempt}")

        print(await fan_out.call(["ch", "fra"]))
        print(await export.call(1_000))
        print(await order_by_mail.call("bob"))


if __name__ == "__main__":
    asyncio.run(main())
