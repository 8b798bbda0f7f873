"""Long jobs that hold no slot while they wait: steps with saved state, children, and signals from outside."""

import asyncio

from jobq import Queue, Snooze, WaitTimeout, Worker, current_job

office = Queue("office", "memory://")


@office.task
async def import_pages(pages: int) -> str:
    done: int = current_job().saved or 0
    if done < pages:
        raise Snooze(0.05, saved=done + 1)  # again in a moment, from where it stopped, at no cost
    return f"{done} pages in {current_job().attempt} runs"


@office.task
async def count_words(page: int) -> int:
    return 100 * page


@office.task
async def report(pages: int) -> int:
    job = current_job()
    for page in range(pages):
        await job.add(count_words, page)
    words = (
        await job.wait_for_children()
    )  # ends this run; the next one starts from the top and finds them done
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
        await remind.options(id=f"remind-{job.id}").enqueue(
            item
        )  # this line runs again in the next pass: once by its id
        approval = await job.wait_for_signal("approve")
    return f"{item}: approved by {approval['by']}"


async def main() -> None:
    async with office, Worker(office):
        print(await import_pages.call(3))

        print(f"{await report.call(4)} words")

        job = await order.enqueue("desk")
        async for event in office.events(after="0"):
            if event.job == job.id and event.kind == "unblocked":  # its first wait is over
                break
        await job.signal("approve", {"by": "ada"})
        print(await job.result(timeout=10))


if __name__ == "__main__":
    asyncio.run(main())
