"""Jobs that kill their worker, among healthy ones, in a process that is restarted each time."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from jobq import Job, JobOptions, Queue, State, Worker
from tests.stores.valkey import servers
from tests.waiting import forever, until

_APP = """
import asyncio, os
from jobq import Queue

work = Queue("work", os.environ["POISON_URL"], mode=os.environ["POISON_MODE"])
more = Queue("more", os.environ["POISON_SECOND_URL"], mode=os.environ["POISON_MODE"])

def define(queue):
    @queue.task
    async def healthy(n: int) -> int:
        return n

    @queue.task
    async def poison(after: float) -> None:
        if after:
            await asyncio.sleep(after)
        os._exit(7)  # before anything that was claimed with it is settled

    @queue.task(max_stalls=0)
    async def gives_up(n: int) -> int:
        return n

define(work)
define(more)
"""


class Fleet:
    """One jq-worker, started again whenever it has died."""

    def __init__(
        self, folder: Path, urls: tuple[str, str], mode: str, concurrency: int, lease: int
    ) -> None:
        (folder / "poisonapp.py").write_text(_APP)
        self.deaths = 0
        self._environment = {
            **os.environ,
            "POISON_URL": urls[0],
            "POISON_SECOND_URL": urls[1],
            "POISON_MODE": mode,
        }
        self._folder = folder
        self._command = (
            sys.executable,
            "-c",
            "from jobq.cli.worker import main; main()",
            "--app",
            "poisonapp:work,more",
            "--lease",
            f"{lease}s",
            "--concurrency",
            str(concurrency),
            "--log-level",
            "warning",
        )

    async def until_done(self, queues: list[Queue], total: int, seconds: float) -> None:
        """Wait until this many jobs have ended."""
        async with asyncio.timeout(seconds):
            while True:
                with open(self._folder / "worker.log", "ab") as log:
                    process = await asyncio.create_subprocess_exec(
                        *self._command,
                        cwd=self._folder,
                        env=self._environment,
                        stdout=log,
                        stderr=log,
                    )
                died = asyncio.ensure_future(process.wait())
                try:
                    while not died.done():
                        if await ended(queues) == total:
                            return
                        await asyncio.wait([died], timeout=0.1)
                finally:
                    if process.returncode is None:
                        process.terminate()
                    await process.wait()
                assert process.returncode == 7, (self._folder / "worker.log").read_text()
                self.deaths += 1


async def ended(queues: list[Queue]) -> int:
    counts = [await queue.counts() for queue in queues]
    return sum(n for each in counts for state, n in each.items() if state.ended)


@pytest.fixture(params=["sqlite", "valkey"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The URL of a store that several processes can share."""
    with ExitStack() as stack:
        if request.param == "valkey":
            yield str(stack.enter_context(servers.running(servers.valkey_or_skip(), tmp_path)).url)
        else:
            yield f"sqlite:///{tmp_path}/jobs.db"


def options(mode: str, n: int, id: str) -> JobOptions:
    """The n-th job gets one of seven keys if the queue is keyed."""
    return {"id": id, "key": f"k{n % 7}"} if mode == "keyed" else {"id": id}


async def play(
    folder: Path,
    url: str,
    *,
    healthy: int,
    poison: int,
    after: float = 0.0,
    mode: str = "plain",
    queues: int = 1,
    second_url: str | None = None,
    concurrency: int = 100,
    seconds: float,
) -> Fleet:
    """Run a mix of both, and check that healthy jobs complete and poison fails with its reason."""
    urls = (url, second_url or url)
    # A job on its last chance waits for one lease for poison that kills after a while.
    fleet = Fleet(folder, urls, mode, concurrency, lease=4 if after else 1)
    places = [("work", urls[0]), ("more", urls[1])][:queues]
    opened = [Queue(name, at, mode=mode) for name, at in places]  # type: ignore[arg-type]
    async with ExitStackOf(opened):
        for queue in opened:
            every = healthy // poison
            for n in range(healthy):
                if n % every == every // 3 and n // every < poison:
                    await queue.task_by_name("poison", **options(mode, n, f"poison-{n}")).enqueue(
                        after
                    )
                await queue.task_by_name("healthy", **options(mode, n, f"healthy-{n}")).enqueue(n)
        await fleet.until_done(opened, queues * (healthy + poison), seconds)
        for queue in opened:
            counts = await queue.counts()
            assert (counts[State.COMPLETED], counts[State.FAILED]) == (healthy, poison)
            await check_story(queue, poison)
    return fleet


async def check_story(queue: Queue, poison: int) -> None:
    """The log says why each poison job failed, and that it was the last of its stalls."""
    kinds: dict[str, Counter[str]] = {}
    reasons = {}
    position = "0"
    store = await queue._context.store()
    while (page := await store.read_events(queue.qname, after=position)).events:
        position = page.position
        for event in page.events:
            kinds.setdefault(event.job, Counter())[str(event.kind)] += 1
            if event.kind == "failed":
                reasons[event.job] = (event.reason, event.stalls)
    assert len(reasons) == poison
    assert all(job.startswith("poison") and why == ("stalled", 4) for job, why in reasons.items())
    for job, seen in kinds.items():
        if job.startswith("healthy"):
            assert seen["completed"] == 1
            assert seen["started"] == 1 + seen["stalled"] + seen["released"]


class ExitStackOf:
    """Several queues, open together."""

    def __init__(self, queues: list[Queue]) -> None:
        self._queues = queues

    async def __aenter__(self) -> None:
        for queue in self._queues:
            await queue.__aenter__()

    async def __aexit__(self, *_: object) -> None:
        for queue in self._queues:
            await queue.aclose()


async def test_a_job_that_kills_its_worker_takes_nobody_along(tmp_path: Path, url: str) -> None:
    fleet = await play(tmp_path, url, healthy=30, poison=1, seconds=60)
    assert fleet.deaths == 4  # max_stalls is 3


@pytest.mark.faults
@pytest.mark.timeout(400)
@pytest.mark.parametrize("after", [0.0, 2.0])
@pytest.mark.parametrize(("mode", "queues"), [("plain", 1), ("keyed", 1), ("plain", 2)])
async def test_five_poison_jobs_among_three_hundred(
    tmp_path: Path, url: str, mode: str, queues: int, after: float
) -> None:
    await play(
        tmp_path, url, healthy=300, poison=5, after=after, mode=mode, queues=queues, seconds=380
    )


async def stalled(queue: Queue, job: Job[None]) -> int:
    """Let the store look for expired leases. Returns how often the job has stalled."""
    await (await queue._context.store()).tick()
    return (await job.info()).stalls


@pytest.mark.faults
@pytest.mark.timeout(400)
@pytest.mark.parametrize("mode", ["plain", "keyed"])
async def test_poison_in_one_store_takes_no_job_of_another_along(
    tmp_path: Path, url: str, mode: str
) -> None:
    await play(
        tmp_path,
        url,
        second_url=f"sqlite:///{tmp_path}/more.db",
        healthy=120,
        poison=3,
        mode=mode,
        queues=2,
        concurrency=20,
        seconds=380,
    )


async def test_a_last_chance_of_an_hour_leaves_other_queues_served(tmp_path: Path) -> None:
    async with (
        Queue("slow", f"sqlite:///{tmp_path}/jobs.db") as slow,
        Queue("other", f"sqlite:///{tmp_path}/jobs.db") as other,
    ):
        begun = asyncio.Event()

        @slow.task(max_stalls=1)
        async def an_hour() -> None:
            begun.set()
            await forever()

        @other.task
        async def quick(n: int) -> int:
            return n

        job = await an_hour.enqueue()
        async with Worker(slow, lease=0.2, drain=0) as first:
            await asyncio.wait_for(begun.wait(), 20)
            # Its thread ends, and with it the lease: as if the worker had died.
            await first._stations[0]._keeper.stop(10)
            await until(lambda: stalled(slow, job), "the job to stall")
        begun.clear()
        async with Worker(slow, other, lease=1, drain=0, last_chance=0.5):
            await asyncio.wait_for(begun.wait(), 20)
            jobs = await quick.enqueue_many([(n,) for n in range(50)])
            assert [await each.result(timeout=20) for each in jobs] == list(range(50))
            info = await job.info()
            assert (info.state, info.stalls) == (State.ACTIVE, 1)


async def test_without_stalls_allowed_jobs_drain_together_as_before(tmp_path: Path) -> None:
    async with Queue("work", f"sqlite:///{tmp_path}/jobs.db") as queue:
        at_once = most = 0

        @queue.task(max_stalls=0)
        async def gives_up(n: int) -> int:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0)
            at_once -= 1
            return n

        jobs = await gives_up.enqueue_many([(n,) for n in range(200)])
        async with Worker(queue, concurrency=50):
            for job in jobs:
                await job.result(timeout=20)
        assert most == 50
