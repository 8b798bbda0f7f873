"""What a Celery application does, with jobq: plain functions, retries, times, chains, chords."""

import asyncio
from datetime import timedelta

from jobq import Cron, JobFailed, Queue, Retry, Worker, current_job, sync

shop = Queue("shop", "memory://")


@shop.task(
    retry=Retry(5, base=1, cap=600, jitter=0.5, on=ConnectionError),  # autoretry_for, retry_backoff
    timeout=30,  # time_limit
)
def charge(invoice: int) -> int:
    job = current_job()  # bind=True, self.request
    if job.attempt == 1:
        raise Retry.after(0.01)  # raise self.retry(countdown=0.01)
    job.sync.progress({"charged": invoice})  # self.update_state(meta=…)
    return 100 * invoice


@shop.task
def send(cents: int) -> str:
    return f"a receipt for {cents}"


@shop.task
def total(cents: list[int]) -> int:
    return sum(cents)


@shop.task(retry=0)
def breaks() -> None:
    raise ValueError("no such invoice")


@shop.task(schedule=Cron("0 6 * * 1-5", tz="Europe/Zurich"))  # beat_schedule, crontab
def digest() -> None: ...


def view() -> None:
    job = charge.sync.enqueue(7)  # charge.delay(7)
    print(job.result(timeout=10))  # .get(timeout=10)

    later = charge.options(  # charge.apply_async((8,), countdown=…, expires=…, task_id=…)
        delay=timedelta(hours=1), ttl=timedelta(days=1), id="invoice-8", priority=5
    ).sync.enqueue(8)
    print(shop.sync.job("invoice-8").state())  # AsyncResult("invoice-8").state
    print(later.cancel())  # .revoke()

    print(sync.chain(charge, send, first=(9,)).result(timeout=10))  # chain(charge.s(9), send.s())
    print(sync.chord(charge, [(1,), (2,)], total).result(timeout=10))  # chord([…])(total.s())
    try:
        breaks.sync.call()  # .delay().get()
    except JobFailed as error:
        print(error.failure.type, error.failure.message)


async def main() -> None:
    async with shop, Worker(shop):  # usually another process: jq-worker --app shop.jobs
        await asyncio.to_thread(view)


if __name__ == "__main__":
    asyncio.run(main())
