"""Lifespan, dependencies, middleware and the hooks of a worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from jobq import (
    CallNext,
    CurrentJob,
    Depends,
    EnqueueNext,
    EnqueueRequest,
    InvalidJob,
    Job,
    Queue,
    Reject,
    Worker,
    current_job,
    on_failure,
    testing,
)


@dataclass
class Resources:
    """What is opened once per worker."""

    rates: dict[str, float] = field(default_factory=dict)


@asynccontextmanager
async def lifespan() -> AsyncIterator[Resources]:
    resources = Resources()
    resources.rates["EUR"] = 1.1  # open pools, load models, …
    yield resources
    resources.rates.clear()  # and close them


# ── dependencies ──────────────────────────────────────────────────────────────────────────────────


class Session:
    def __init__(self, rates: dict[str, float]) -> None:
        self.rates = rates


def get_rates() -> dict[str, float]:
    return current_job().lifespan(Resources).rates


def get_db(rates: dict[str, float] = Depends(get_rates)) -> Iterator[Session]:
    session = Session(rates)
    try:
        yield session
        print("commit")
    except BaseException:
        print("rollback")
        raise


# ── middleware ────────────────────────────────────────────────────────────────────────────────────


async def timed(job: CurrentJob, call_next: CallNext) -> object:
    start = time.monotonic()
    try:
        return await call_next(job)
    finally:
        print(f"{job.name} took {time.monotonic() - start:.1f} s")


async def for_known_tenants(request: EnqueueRequest, call_next: EnqueueNext) -> Job[Any]:
    if request.kwargs.get("tenant") == "nobody":
        raise InvalidJob("there is no tenant named nobody")
    request.meta["source"] = "shop"
    if request.name == "report":
        request.options["priority"] = 5
    return await call_next(request)


async def alert(job: CurrentJob, error: BaseException) -> None:
    print(f"{job.name} failed for good: {error}")


billing = Queue(
    "billing",
    "memory://hooks",
    middleware=[timed, on_failure(alert, final=True)],
    enqueue_middleware=[for_known_tenants],
)


@billing.task
async def charge(amount: float, *, tenant: str, db: Session = Depends(get_db)) -> float:
    if amount < 0:
        raise Reject("a negative amount")
    return round(amount * db.rates["EUR"], 2)


async def main() -> None:
    idle = asyncio.Event()
    async with billing, Worker(billing, lifespan=lifespan, on_idle=idle.set):
        job = await charge.enqueue(10, tenant="acme")
        print(f"{await job.result(timeout=10)}, from {(await job.info()).meta['source']}")
        await (await charge.enqueue(-1, tenant="acme")).wait(timeout=10)
        try:
            await charge.enqueue(10, tenant="nobody")
        except InvalidJob as refusal:
            print(f"refused: {refusal}")

    # In a test: another session, and no lifespan.
    with testing.override(get_db, lambda: Session({"EUR": 2.0})):
        print(await charge(10, tenant="acme"))


if __name__ == "__main__":
    asyncio.run(main())
