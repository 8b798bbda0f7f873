"""Retries, timeouts, and exceptions with which a handler controls its job."""

import asyncio

from jobq import JobFailed, Queue, Reject, Retry, Snooze, Worker, current_job

net = Queue("net", "memory://")


@net.task(retry=Retry(8, base=0.01, factor=2, cap=0.1, jitter=0.2))
async def fetch(page: int) -> str:
    if current_job().attempt < 3:
        raise ConnectionError("no reply")
    return f"page {page} on attempt {current_job().attempt}"


@net.task(retry=Retry(3, delays=[0.01, 0.02], on=OSError, give_up_on=PermissionError))
async def save(path: str) -> None:
    raise PermissionError(path)


@net.task(retry=Retry(5, delays=lambda n, error: None if "gone" in str(error) else 0.01 * n))
async def call_out() -> None:
    raise RuntimeError("410 gone")


@net.task(timeout=0.05, retry=0)
async def slow() -> None:
    await asyncio.sleep(60)


@net.task(retry=2)
async def polite() -> str:
    if current_job().attempt == 1:
        raise Retry.after(0.01)  # a failure, with its own delay
    return "back again"


@net.task
async def poll() -> str:
    seen = current_job().saved or 0
    if seen < 3:
        raise Snooze(0.01, saved=seen + 1)  # does not use up a retry
    return f"ready after {seen} polls"


@net.task
async def transfer(to: str) -> None:
    raise Reject(f"no such account: {to}")  # fails now, even if retries are left


async def main() -> None:
    async with net, Worker(net):
        print(await fetch.call(1))
        print(await polite.call())
        print(await poll.call())
        for task, args in (
            (save, ("/etc/hosts",)),
            (call_out, ()),
            (slow, ()),
            (transfer, ("nobody",)),
        ):
            try:
                await task.call(*args)
            except JobFailed as error:
                failure = error.failure
                print(
                    f"{task.name}: {failure.reason} in attempt {failure.attempt}: {failure.message}"
                )
        print(await fetch.options(retry=Retry(2, base=0.01)).call(2))  # for this call only


if __name__ == "__main__":
    asyncio.run(main())
