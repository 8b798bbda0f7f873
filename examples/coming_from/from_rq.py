"""What an RQ application does, with jobq: plain functions, dependencies, repeated jobs."""

import asyncio
from datetime import timedelta

from jobq import Every, Queue, Retry, Worker, current_job, sync

low = Queue("low", "memory://")


@low.task(retry=Retry(3, delays=[10, 30, 60]), timeout=180, result_ttl=500)
def count_words(text: str) -> int:
    job = current_job()  # get_current_job()
    job.sync.progress({"chars": len(text)})  # job.meta[…] = …; job.save_meta()
    return len(text.split())


@low.task
def report(words: int) -> str:
    return f"{words} words"


@low.task(schedule=Every(timedelta(minutes=5)))  # Repeat, or rq's cron
def refresh() -> None: ...


def view() -> None:
    job = count_words.sync.enqueue("to be or not to be")  # queue.enqueue(count_words, …)
    print(job.result(timeout=10))  # poll job.return_value()
    print(job.state(), job.info().progress)  # job.get_status(), job.get_meta()

    count_words.options(delay=60).sync.enqueue("later")  # queue.enqueue_in(timedelta(…), …)
    count_words.options(lifo=True).sync.enqueue("first")  # at_front=True
    count_words.options(unique=True).sync.enqueue("once")  # unique=True

    both = sync.chain(count_words, report, first=("a b c",))  # depends_on=job
    print(both.result(timeout=10))

    with low.sync.flow() as flow:  # depends_on=[…]
        first = flow.add(count_words, "a")
        flow.add(report.options(after=[first]), 1)


async def main() -> None:
    async with low, Worker(low):  # usually another process: jq-worker --app app.jobs:low
        await asyncio.to_thread(view)


if __name__ == "__main__":
    asyncio.run(main())
