"""Unique jobs, in the modes simple, throttle, debounce and keep_last."""

import asyncio

from jobq import Queue, Unique, Worker

docs = Queue("docs", "memory://")
started = asyncio.Event()
go_on = asyncio.Event()


@docs.task(unique=Unique("document"))
async def index(document: int, reason: str) -> str:
    return f"{document}: {reason}"


@docs.task(unique=Unique("user", mode="throttle", period=3600))
async def remind(user: str) -> str:
    return user


@docs.task(unique=Unique("document", mode="debounce", period=0.2))
async def save(document: int, text: str) -> str:
    return text


@docs.task(unique=Unique("account", mode="keep_last"))
async def sync(account: str, version: int) -> int:
    started.set()
    await go_on.wait()
    return version


async def main() -> None:
    async with docs:
        first = await index.enqueue(1, reason="edited")
        second = await index.enqueue(1, reason="renamed")
        other = await index.enqueue(2, reason="edited")
        print(f"simple: {second.duplicate=}, {second.id == first.id=}, {other.duplicate=}")

        await remind.enqueue("ada")
        print(f"throttle: {(await remind.enqueue('ada')).duplicate=}")

        lock = docs.lock(remind, user="ada")
        held = await lock.info()
        assert held
        print(f"held by {held.job_id} until {held.until:%H:%M}")
        print(f"released: {await lock.release()}, now {await lock.info()}")

        await save.enqueue(1, "a")
        await save.enqueue(1, "ab")
        last = await save.enqueue(1, "abc")

        async with Worker(docs):
            print(f"debounce: {await last.result(timeout=10)}")

            running = await sync.enqueue("acme", 1)
            await started.wait()
            await sync.enqueue("acme", 2)
            follow_up = await sync.enqueue("acme", 3)
            go_on.set()
            results = [await job.result(timeout=10) for job in (running, follow_up)]
            print(f"keep_last: {results}")


if __name__ == "__main__":
    asyncio.run(main())
