"""What a dramatiq application does, with jobq: actors, middleware, rate limits, pipelines."""

import asyncio

from jobq import CallNext, CurrentJob, Queue, Rate, Retry, Worker, sync

seen: list[str] = []


async def audit(job: CurrentJob, call_next: CallNext) -> object:
    """A middleware: before_process_message and after_process_message in one function."""
    try:
        return await call_next(job)
    finally:
        seen.append(job.name)


emails = Queue("emails", "memory://", middleware=[audit], rate=Rate(100, per=1))


@emails.task(
    retry=Retry(20, base=15, cap=7 * 24 * 3600, give_up_on=ValueError),  # max_retries, throws
    timeout=600,  # time_limit=600_000
)
def count(url: str) -> int:  # @dramatiq.actor(queue_name="emails")
    return len(url)


@emails.task
def double(n: int) -> int:
    return 2 * n


@emails.task
def report(counts: list[int]) -> str:
    return f"{sum(counts)} characters"


def view() -> None:
    message = count.sync.enqueue("https://example.org")  # count.send(…)
    print(message.result(timeout=10))  # message.get_result(block=True)
    count.options(delay=60, ttl=3600).sync.enqueue("x")  # send_with_options(delay=60_000), max_age
    print(sync.chain(count, double, first=("abc",)).result(timeout=10))  # pipeline, or a | b
    urls = [("a",), ("bb",)]
    print(sync.group(count, urls).result(timeout=10))  # group([…]).run(); .get_results()
    print(sync.chord(count, urls, report).result(timeout=10))  # add_completion_callback


async def main() -> None:
    async with emails, Worker(emails):  # usually another process: jq-worker --app app.jobs
        await asyncio.to_thread(view)
    print(f"the middleware saw {len(seen)} runs")


if __name__ == "__main__":
    asyncio.run(main())
