"""Batches: one handler call for many jobs, which are enqueued, retried and awaited one by one."""

import asyncio
from dataclasses import dataclass

from jobq import JobFailed, Queue, Worker

search = Queue("search", "memory://")
calls: list[int] = []


@dataclass
class Document:
    id: int
    text: str


@search.batch_task(size=100, window=0.2, retry=0)
async def index(documents: list[Document]) -> list[int | Exception]:
    calls.append(len(documents))
    return [
        len(document.text.split()) or ValueError(f"document {document.id} is empty")
        for document in documents
    ]


async def main() -> None:
    async with search, Worker(search):
        jobs = [await index.enqueue(Document(n, "some words " * n)) for n in range(4)]
        for job in jobs:
            try:
                print(f"{await job.result(timeout=10)} words")
            except JobFailed as error:
                print(f"failed alone: {error.failure.message}")
        print(f"{len(jobs)} jobs in {len(calls)} call{'s' if len(calls) > 1 else ''}")


if __name__ == "__main__":
    asyncio.run(main())
