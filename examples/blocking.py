"""Producers without an event loop: `.sync` has a blocking version of every async method."""

import asyncio

from jobq import Queue, State, Worker, sync

mail = Queue("mail", "sqlite:///blocking.db")


@mail.task
def send(to: str) -> str:
    return f"sent to {to}"


def view() -> None:
    """A view in a web framework without asyncio."""
    job = send.sync.enqueue("ada@example.org")
    print(mail.sync.counts()[State.WAITING], "waiting")
    print(job.result(timeout=10))
    print(send.sync.call("grace@example.org"))

    letters = sync.group(send, [("alan@example.org",), ("edsger@example.org",)])
    print(letters.result(timeout=10))


async def main() -> None:
    async with mail, Worker(mail):  # usually another process: jq-worker blocking:mail
        await asyncio.to_thread(view)


if __name__ == "__main__":
    asyncio.run(main())
