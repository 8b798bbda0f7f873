"""The quickstart: a queue, a task, a worker and a result."""

import asyncio

from jobq import Queue, Worker

mail = Queue("mail", "sqlite:///mail.db")


@mail.task(retry=5, timeout=30)
async def send(to: str, subject: str) -> str:
    return f"sent {subject!r} to {to}"


async def main() -> None:
    async with mail:
        job = await send.enqueue("ada@example.org", subject="Hello")
        async with Worker(mail):
            print(await job.result(timeout=10))


if __name__ == "__main__":
    asyncio.run(main())
