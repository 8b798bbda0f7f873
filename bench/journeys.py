"""How far a plain job travels: the files of jobq that it enters, and the calls there.

    python -m bench.journeys                    all journeys
    python -m bench.journeys --store sqlite     those on one store
    python -m bench.journeys --files            each file, with its calls
    python -m bench.journeys --calls            each function, in the order of its first call

Producer and worker are in one process, and have run other jobs before. Each resumption of a
coroutine counts as a call. A journey is repeated, and the one with the fewest calls counts: loops
of the worker that happen to run meanwhile do not belong to the job.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import jobq
from bench.places import postgres_database
from jobq import Queue, Worker

SOURCES = f"{Path(jobq.__file__).parent}/"
WARM = 5
"""Jobs that run before anything is counted, so that nothing is opened or compiled any more."""
REPEATS = 20

Calls = Counter[CodeType]
Step = Callable[[], Awaitable[Any]]


class Profile:
    """Counts calls in the files of jobq, in all threads, while it is on."""

    def __init__(self) -> None:
        self.on = False
        self.calls: Calls = Counter()

    def install(self) -> None:
        """For this thread and those that start from now on."""
        threading.setprofile(self._see)
        sys.setprofile(self._see)

    def remove(self) -> None:
        """Threads that run already go on calling, and count nothing."""
        threading.setprofile(None)
        sys.setprofile(None)
        self.on = False

    def _see(self, frame: FrameType, event: str, _: object) -> None:
        if self.on and event == "call" and frame.f_code.co_filename.startswith(SOURCES):
            self.calls[frame.f_code] += 1

    async def shortest(self, step: Step) -> Calls:
        """The calls of the repeat that made the fewest."""
        found = []
        for _ in range(REPEATS):
            self.calls = Counter()
            self.on = True
            await step()
            self.on = False
            found.append(self.calls)
        return min(found, key=Counter.total)


@asynccontextmanager
async def ready(url: str, profile: Profile, *, worker: bool) -> AsyncIterator[Any]:
    """A task of a queue on this store, warmed up."""
    profile.install()
    queue = Queue("journeys", url)

    @queue.task
    async def work(text: str) -> int:
        return len(text)

    async with queue:
        if worker:
            async with Worker(queue, concurrency=1):
                for _ in range(WARM):
                    await (await work.enqueue("x")).result(timeout=30)
                yield work
        else:
            for _ in range(WARM):
                await work.enqueue("x")
            yield work
    profile.remove()


async def enqueue(url: str) -> Calls:
    """Enqueue a job."""
    profile = Profile()
    async with ready(url, profile, worker=False) as work:
        return await profile.shortest(lambda: work.enqueue("x"))


async def life(url: str) -> Calls:
    """Enqueue a job, claim it, run it, settle it, and get its result."""
    profile = Profile()

    async def whole() -> None:
        await (await work.enqueue("x")).result(timeout=30)

    async with ready(url, profile, worker=True) as work:
        return await profile.shortest(whole)


JOURNEYS = {"enqueue": enqueue, "life": life}


@contextmanager
def store(name: str) -> Iterator[str]:
    """The URL of a new store."""
    if name == "postgres":
        with postgres_database() as place:
            yield place.url
    else:
        with tempfile.TemporaryDirectory() as folder:
            yield f"sqlite:///{folder}/jobs.db"


def file_of(code: CodeType) -> str:
    """The file of a function, below src/jobq."""
    return code.co_filename.removeprefix(SOURCES)


def show(title: str, calls: Calls, *, files: bool, functions: bool) -> None:
    """Print a journey."""
    by_file: Counter[str] = Counter()
    for code, n in calls.items():
        by_file[file_of(code)] += n
    print(f"{title:<20} {calls.total():>5} calls {len(by_file):>3} files", flush=True)
    for file, n in sorted(by_file.items()) if files else ():
        print(f"    {n:>4} {file}")
    for code, n in calls.items() if functions else ():
        print(f"    {n:>4} {file_of(code)}:{code.co_qualname}")


def main() -> None:
    """Print the journeys."""
    parser = argparse.ArgumentParser(prog="python -m bench.journeys", description=__doc__)
    parser.add_argument("--store", choices=("sqlite", "postgres"), help="only this store")
    parser.add_argument("--journey", choices=tuple(JOURNEYS), help="only this journey")
    parser.add_argument("--files", action="store_true", help="the calls in each file")
    parser.add_argument("--calls", action="store_true", help="the calls of each function")
    options = parser.parse_args()
    for name in (options.store,) if options.store else ("sqlite", "postgres"):
        for journey in (options.journey,) if options.journey else JOURNEYS:
            with store(name) as url:
                calls = asyncio.run(JOURNEYS[journey](url))
            title = f"{journey} on {name}"
            show(title, calls, files=options.files, functions=options.calls)


if __name__ == "__main__":
    main()
