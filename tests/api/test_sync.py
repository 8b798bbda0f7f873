"""The blocking API: a method for every async one, usable in any thread and after a fork."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from jobq import Job, JobNotFound, Queue, State, Task, Worker, sync


@pytest.fixture
def blocking(url: str) -> Iterator[Queue]:
    queue = Queue("blocking", url)
    with queue.sync:
        yield queue


def test_jobs_are_enqueued_read_and_changed(blocking: Queue) -> None:
    job = blocking.sync.task_by_name("nobody", priority=2).enqueue(1, two=2)
    assert job.info().kwargs == {"two": 2}
    assert job.state() is State.WAITING
    assert job.reprioritise(5)
    assert job.update(3)
    assert blocking.sync.job(job.id).info().args == (3,)
    assert job.cancel()
    assert job.wait(timeout=5).state is State.CANCELLED
    assert job.rerun()
    assert job.remove()
    assert job.remove()
    with pytest.raises(JobNotFound):
        job.info()


def test_a_blocking_call_gets_its_result_from_a_worker(blocking: Queue) -> None:
    @blocking.task
    async def double(n: int) -> int:
        return 2 * n

    worker = Worker(blocking)
    sync.run(worker.__aenter__())
    try:
        assert double.sync.call(4) == 8
        assert double.sync.enqueue(5).result(timeout=10) == 10
        assert double.sync.options(priority=3).enqueue(6).result(timeout=10) == 12
        assert [job.result(timeout=10) for job in double.sync.enqueue_many([(1,), {"n": 2}])] == [
            2,
            4,
        ]
    finally:
        sync.run(worker.stop())


def test_chain_group_and_chord_have_a_blocking_api(blocking: Queue) -> None:
    @blocking.task
    async def double(n: int) -> int:
        return 2 * n

    @blocking.task
    async def total(numbers: list[int]) -> int:
        return sum(numbers)

    worker = Worker(blocking)
    sync.run(worker.__aenter__())
    try:
        assert sync.chain(double, double, first=(3,)).result(timeout=10) == 12
        assert sync.group(double, ((n,) for n in range(3))).result(timeout=10) == [0, 2, 4]
        assert sync.chord(double, ((n,) for n in range(3)), total).result(timeout=10) == 6
    finally:
        sync.run(worker.stop())


def test_a_queue_is_operated(blocking: Queue) -> None:
    nobody = blocking.sync.task_by_name("nobody")
    jobs = blocking.sync.enqueue_many(nobody.bind(n) for n in range(1100))
    assert len(jobs) == 1100
    assert blocking.sync.counts()[State.WAITING] == 1100
    assert len(list(blocking.sync.find(state="waiting"))) == 1100
    assert [
        event.job for event, _ in zip(blocking.sync.events(after="0"), range(3), strict=False)
    ] == [j.id for j in jobs[:3]]
    blocking.sync.pause()
    assert blocking.sync.stats().paused
    blocking.sync.resume()
    assert blocking.sync.purge("waiting") == 1100
    assert blocking.sync.purge("cancelled", max_jobs=10) == 10
    assert blocking.sync.rerun() == blocking.sync.purge() == 0
    assert blocking.sync.workers() == []
    assert sum(minute.accepted for minute in blocking.sync.metrics()) == 1100
    blocking.sync.obliterate()
    assert sum(blocking.sync.counts().values()) == 0


def test_a_generator_of_calls_is_read_in_the_callers_thread(blocking: Queue) -> None:
    threads = set()

    def calls() -> Iterator[tuple[int]]:
        for n in range(10):
            threads.add(threading.current_thread())
            yield (n,)

    blocking.sync.task_by_name("nobody").enqueue_many(calls())
    assert threads == {threading.current_thread()}


def test_many_threads_use_the_blocking_api_at_once(blocking: Queue) -> None:
    nobody = blocking.sync.task_by_name("nobody")
    threads = [
        threading.Thread(target=lambda: [nobody.enqueue(n) for n in range(20)]) for _ in range(10)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert blocking.sync.counts()[State.WAITING] == 200


async def test_a_blocking_call_in_an_event_loop_says_what_to_do_instead(queue: Queue) -> None:
    with pytest.raises(RuntimeError, match="use the async method"):
        queue.sync.counts()


@pytest.mark.parametrize(
    ("cls", "blocking"),
    [(Job, sync.SyncJob), (Task, sync.SyncTask), (Queue, sync.SyncQueue)],
    ids=lambda c: c.__name__,
)
def test_every_async_method_has_a_blocking_one(cls: type, blocking: type) -> None:
    # close() is the blocking aclose(); tasks are declared on the Queue itself.
    without = {"aclose", "task", "batch_task", "command", "include"}
    names = {
        name
        for name, _ in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_") and name not in without
    }
    assert len(names) > 5
    for name in names:
        ours = list(inspect.signature(getattr(cls, name)).parameters.values())
        theirs = list(inspect.signature(getattr(blocking, name)).parameters.values())
        assert [(p.name, p.kind, p.default) for p in ours] == [
            (p.name, p.kind, p.default) for p in theirs
        ], name


FORKING = """
import os, sys
from jobq import Queue
queue = Queue("forked", sys.argv[1])
queue.sync.task_by_name("nobody").enqueue("parent")
pid = os.fork()
if pid == 0:
    queue.sync.task_by_name("nobody").enqueue("child")
    sys.stdout.flush()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert sorted(job.args[0] for job in queue.sync.find()) == ["child", "parent"]
print("ok")
"""


def test_a_forked_child_gets_its_own_portal(tmp_path: object) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING, f"sqlite:///{tmp_path}/jobs.db"],
        capture_output=True,
        text=True,
        timeout=60,
        env=dict(os.environ),
        check=False,
    )
    assert (done.stdout, done.stderr) == ("ok\n", "")
