"""mypy with the plugin jobq.mypy: a dependency is not an argument of a task."""

from __future__ import annotations

import re
from pathlib import Path

from mypy import api

CODE = """
from collections.abc import AsyncIterator, Iterator
from typing import assert_type

from jobq import (
    AsyncTask,
    CallNext,
    CurrentJob,
    Depends,
    EnqueueNext,
    EnqueueRequest,
    Job,
    Queue,
    Tasks,
    Worker,
    current_job,
    on_failure,
)


class Session: ...


def get_db() -> Iterator[Session]:
    yield Session()


async def get_name(db: Session = Depends(get_db)) -> str:
    return "name"


async def timed(job: CurrentJob, call_next: CallNext) -> object:
    return await call_next(job)


async def stamped(request: EnqueueRequest, call_next: EnqueueNext) -> Job[object]:
    request.options["priority"] = 3
    request.meta["user"] = "me"
    return await call_next()


def alert(job: CurrentJob, error: BaseException) -> None: ...


queue = Queue("q", middleware=[timed, on_failure(alert)], enqueue_middleware=[stamped])
tasks = Tasks()
Worker(queue, middleware=[timed], on_idle=lambda: None, weights={"q": 2})


@queue.task
async def charge(n: int, db: Session = Depends(get_db), name: str = Depends(get_name)) -> int:
    assert_type(current_job().lifespan(Session), Session)
    return n


@queue.task(retry=3)
def plain(n: int, *, db: Session = Depends(get_db)) -> int:
    return n


@tasks.task
async def apart(n: int, *, db: Session = Depends(get_db)) -> int:
    return n


async def main() -> None:
    assert_type((await charge.enqueue(1)), Job[int])
    await charge.enqueue(1, db=Session())  # call-arg
    await charge.enqueue(1, Session())  # call-arg
    await plain.enqueue(1, db=Session())  # call-arg
    await plain.options(delay=1).enqueue("one")  # arg-type
    await apart.enqueue(1, db=Session())  # call-arg
    await apart.enqueue(n=1)


def wrong_provider(n: int = Depends(get_db)) -> None: ...  # assignment


async def wrong_options(request: EnqueueRequest) -> None:
    request.options["priority"] = "high"  # typeddict-item


Queue("q", middleware=[alert])  # list-item
"""


def test_mypy_refuses_a_dependency_as_an_argument(tmp_path: Path) -> None:
    code, config = tmp_path / "application.py", tmp_path / "mypy.ini"
    code.write_text(CODE)
    config.write_text("[mypy]\nplugins = jobq.mypy\n")
    options = ["--strict", "--no-error-summary", "--hide-error-context"]
    out, err, _ = api.run([*options, "--config-file", str(config), str(code)])
    assert not err
    expected = {
        n: found[1]
        for n, line in enumerate(CODE.splitlines(), 1)
        if (found := re.search(r"  # ([a-z-]+)$", line))
    }
    reported = dict(re.findall(r"application.py:(\d+): error: .*\[([a-z-]+)\]", out))
    assert {int(n): code for n, code in reported.items()} == expected, out
