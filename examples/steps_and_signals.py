"""Long jobs that occupy no slot while they wait: steps, children and signals."""

import asyncio

from jobq import Queue, Snooze, WaitTimeout, Worker, current_job

office = Queue("office", "memory://")


@office.task
async def import_pages(pages: int) -> str:
    done: int = current_job().saved or 0
    if done < pages:
        raise Snooze(0.05, saved=done + 1)  # continue there in 50 ms; uses up no retry
    return f"{done} pages in {current_job().attempt} runs"


@office.task
async def count_words(page: int) -> int:
    return 100 * page


@office.task
async def report(pages: int) -> int:
    job = current_job()
    for page in range(pages):
        await job.add(count_words, page)
    # The wait ends this run. The next run starts at the top, and finds the children done.
    words = await job.wait_for_children()
    return sum(words.values())


@office.task
async def remind(item: str) -> None:
    print(f"{item}: nobody has approved it yet")


@office.task
async def order(item: str) -> str:
    job = current_job()
    try:
        approval = await job.wait_for_signal("approve", timeout=0.2)
    except WaitTimeout:
        # The next run executes this line again. The id makes sure that there is one reminder.
        await remind.options(id=f"remind-{job.id}").enqueue(item)
        approval = await job.wait_for_signal("approve")
    return f"{item}: approved by {approval['by']}"


async def main() -> None:
    async with office, Worker(office):
        print(await import_pages.call(3))

        print(f"{await report.call(4)} words")

        job = await order.enqueue("desk")
        async for event in office.events(after="0"):
            if event.job == job.id and event.kind == "unblocked":  # its first wait has timed out
                break
        await job.signal("approve", {"by": "ada"})
        print(await job.result(timeout=10))


if __name__ == "__main__":
    asyncio.run(main())
