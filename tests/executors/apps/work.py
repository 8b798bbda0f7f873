"""Tasks that tests run in child processes. A test moves the queue to its own store."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobq import Codec, Permissions, Queue, RateLimited, Reject, Retry, Snooze, current_job
from tests.waiting import blocks, takes, wait_until

queue = Queue("apart", "memory://apart")
other = Queue("other", "memory://apart")
confined = Queue("confined", "memory://apart")
elsewhere = Queue("elsewhere", "sqlite:///elsewhere.db")
NO_RETRY = Retry(0)
AT_ONCE = Retry(3, base=0)


class Unlucky(Exception):
    """An error of this application."""


def define_later(queue: Queue) -> None:
    """Register a task that importing this module does not register."""

    @queue.task(executor="process")
    def local() -> None: ...


@queue.task(executor="process")
def add(a: int, b: int) -> int:
    return a + b


@queue.task(executor="process")
async def add_async(a: int, b: int) -> int:
    await asyncio.sleep(0)
    return a + b


@queue.task(executor="process")
def pid() -> int:
    return os.getpid()


@queue.task(executor="process", retry=Retry(0, base=0))
def fail(words: str) -> None:
    raise Unlucky(words)


@queue.task(executor="process", retry=Retry(5, base=0, give_up_on=Unlucky))
def give_up() -> None:
    raise Unlucky("no use")


@queue.task(executor="process", retry=Retry(5))
def reject() -> None:
    raise Reject("never")


@queue.task(executor="process")
def snooze() -> str:
    saved = current_job().saved
    if saved is None:
        raise Snooze(0, saved={"step": 1})
    return f"step {saved['step']}"


@queue.task(executor="process", retry=NO_RETRY)
def die(how: str) -> None:
    if how == "exit":
        os._exit(7)
    elif how == "segfault":
        ctypes.string_at(0)
    else:
        os.kill(os.getpid(), getattr(signal, how))


@queue.task(executor="process", retry=AT_ONCE)
def die_once() -> int:
    if current_job().attempt == 1:
        os._exit(3)
    return current_job().attempt


@queue.task(executor="process", retry=NO_RETRY, timeout=0.3)
def polite(path: str) -> None:
    try:
        blocks(60)
    finally:
        Path(path).write_text(f"cleaned, cancelled={current_job().cancelled}")


@queue.task(executor="process", retry=NO_RETRY, timeout=0.3)
async def polite_async(path: str) -> None:
    try:
        await takes(60)
    finally:
        Path(path).write_text(f"cleaned, cancelled={current_job().cancelled}")


@queue.task(executor="process", retry=NO_RETRY, timeout=0.3, grace=0.2)
def stubborn() -> None:
    while True:
        try:
            blocks(60)
        except asyncio.CancelledError:
            pass


@queue.task(executor="process", retry=NO_RETRY, grace=0.2)
def busy(path: str) -> None:
    Path(path).write_text("running")
    while True:
        try:
            while True:
                pass
        except asyncio.CancelledError:
            pass


@queue.task(executor="process", retry=NO_RETRY)
def until_there_is(begun: str, end: str) -> int:
    Path(begun).touch()
    while not Path(end).exists():
        blocks(0.01)
    return os.getpid()


@queue.task(executor="process", retry=NO_RETRY)
def returns_and_dies(begun: str, end: str) -> None:
    def die() -> None:
        blocks(0.1)  # the end of the job is reported meanwhile
        os._exit(3)

    Path(begun).touch()
    while not Path(end).exists():
        blocks(0.01)
    threading.Thread(target=die, daemon=True).start()


@queue.task(executor="process", retry=NO_RETRY)
def waits(path: str) -> None:
    Path(path).write_text("running")
    blocks(60)


@queue.task(executor="process", retry=NO_RETRY, timeout=30)
def with_grandchild(path: str) -> None:
    child = subprocess.Popen(["sleep", "60"])
    Path(path).write_text(str(child.pid))
    while True:
        try:
            blocks(60)
        except asyncio.CancelledError:
            pass


@queue.task(executor="process")
def prints() -> None:
    print("from print")
    print("from stderr", file=sys.stderr)
    subprocess.run(["sh", "-c", "echo from a grandchild"], check=True)
    ctypes.CDLL(None).puts(b"from C")
    sys.stdout.write("without an end")


@queue.task(executor="process", retry=NO_RETRY)
def prints_and_dies() -> None:
    print("the last words")
    os._exit(1)


@queue.task(executor="process")
def prints_its_number(n: int) -> None:
    print(n)


@queue.task(executor="process")
def prints_much(lines: int) -> None:
    for n in range(lines):
        print("line", n)


@queue.task(executor="process")
def prints_without_a_pause(begun: str, end: str) -> None:
    # `timeout`, so that a worker that reads until the pipe is empty fails the test, and goes on.
    with subprocess.Popen(["timeout", "10", "yes"]) as flood:
        Path(begun).touch()
        while not Path(end).exists():
            blocks(0.01)
        flood.terminate()


@queue.task(executor="process")
def prints_then_logs() -> None:
    print("first")
    current_job().sync.log("second")
    print("third")


@queue.task(executor="process")
def uses_its_job() -> dict[str, Any]:
    job = current_job()
    job.sync.progress({"half": True})
    job.sync.log("a line")
    return {
        "id": job.id,
        "name": job.name,
        "queue": job.queue,
        "tenant": job.tenant,
        "attempt": job.attempt,
        "failures": job.failures,
        "max_retries": job.max_retries,
        "key": job.key,
        "meta": dict(job.meta),
        "cancelled": job.cancelled,
        "created": job.created_at.isoformat(),
    }


@queue.task(executor="process")
def leaves_a_thread_that_logs() -> None:
    job = current_job().sync
    begun = threading.Event()

    def log() -> None:
        with suppress(Exception):  # its traceback would be a line of whichever job runs then
            while True:
                job.log("from a thread")
                begun.set()

    threading.Thread(target=log, daemon=True).start()
    begun.wait(20)


@queue.task(executor="process")
async def logs_from_another_loop(lines: int) -> None:
    job = current_job()

    async def log() -> None:
        for n in range(lines):
            await job.log(f"there {n}")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(asyncio.to_thread(asyncio.run, log()))
        for n in range(lines):
            await job.log(f"here {n}")


@queue.task(executor="process")
def logs(line: str) -> int:
    current_job().sync.log(line)
    return os.getpid()


@queue.task(executor="process")
async def uses_its_job_async() -> str:
    job = current_job()
    await asyncio.gather(job.progress(1), job.log("one"), job.log("two"))
    await asyncio.to_thread(job.sync.log, "from a thread")
    return job.id


@queue.task
async def child(n: int) -> int:
    return n * 10


@queue.task(executor="process")
def parent(count: int) -> list[int]:
    job = current_job().sync
    for n in range(count):
        job.add(child, n)
    return list(job.wait_for_children().values())


@queue.task(executor="process")
async def parent_async(count: int) -> list[int]:
    job = current_job()
    for n in range(count):
        await job.add(child, n)
    return list((await job.wait_for_children()).values())


@elsewhere.task
async def stranger() -> None: ...


@queue.task(executor="process", retry=NO_RETRY)
def parent_elsewhere() -> None:
    current_job().sync.add(stranger)


@queue.task(executor="process", retry=NO_RETRY)
def completes_itself() -> None:
    current_job().sync.complete_in(object())


@queue.task(executor="process")
def asks() -> Any:
    return current_job().sync.wait_for_signal("approved", timeout=3600)


@queue.task(executor="process", retry=NO_RETRY)
async def enqueues_in_its_queue() -> str:
    return (await child.enqueue(1)).id


@queue.task(executor="process", retry=NO_RETRY)
def enqueues(url: str) -> str:
    async def put() -> str:
        async with Queue("elsewhere", url) as there:
            return (await there.task_by_name("later").enqueue(1)).id

    return asyncio.run(put())


ONE_FILE = Permissions(read=["/etc/hostname"])


@confined.task(executor="process", retry=NO_RETRY, permissions=ONE_FILE)
def read(path: str) -> int:
    return len(Path(path).read_text())


@confined.task(executor="process", retry=NO_RETRY, permissions=ONE_FILE)
async def read_async(path: str) -> int:
    await current_job().log("reading")
    return len(Path(path).read_text())


@confined.task(executor="process", retry=NO_RETRY, permissions=Permissions(cpu=1))
def burn(forever: bool) -> int:
    while forever:
        pass
    return os.getpid()


commands = Queue("commands", "memory://apart")
ECHO = "import json, sys; given = json.load(sys.stdin); print(json.dumps([sys.argv[1:], given]))"
echo = commands.command("echo", [sys.executable, "-c", ECHO, "--size", "{size}", "{name}"])
shell = commands.command("shell", ["sh", "-c", "{script}"], retry=NO_RETRY, grace=0.2)
patient = commands.command("patient", ["sh", "-c", "{script}"], retry=Retry(2, base=0))
TELL = ["sh", "-c", """printf '"%s,%s,%s"' "$SECRET_OF_TEST" "$ANOTHER_SECRET" "$JOBQ_TASK" """]
told = commands.command("told", TELL, env=["SECRET_OF_TEST"], retry=NO_RETRY)
limited_told = commands.command(
    "limited_told", TELL, env=["SECRET_OF_TEST"], permissions=Permissions(), retry=NO_RETRY
)
limited = commands.command("limited", ["cat", "{path}"], permissions=ONE_FILE, retry=NO_RETRY)


class Reversed(Codec):
    """JSON from right to left: a codec of the application's own."""

    name = "reversed"

    def encode(self, value: Any) -> bytes:
        return json.dumps(value).encode()[::-1]

    def decode(self, data: bytes, annotation: Any = Any) -> Any:
        return json.loads(data[::-1])


@dataclass
class Point:
    x: int
    y: int


packed = Queue("packed", "memory://apart", codec="msgpack")
own = Queue("own", "memory://apart", codec=Reversed(), executor="process")


@packed.task(executor="process")
def mirrored(point: Point, data: bytes) -> tuple[Point, bytes]:
    return Point(point.y, point.x), data[::-1]


@own.task
def doubled(text: str) -> str:
    assert os.getpid() != 0
    return text * 2


@queue.task(executor="process")
def total(parts: list[int]) -> int:
    return sum(parts)


@queue.task(executor="process")
def limited_once() -> int:
    if current_job().attempt == 1:
        raise RateLimited(0.05)
    return current_job().failures


def charge(folder: str, name: str) -> Point:
    """A step. It leaves a file for each call."""
    calls = len(list(Path(folder).glob(f"{name}-*")))
    Path(folder, f"{name}-{calls}").touch()
    return Point(calls, os.getpid())


async def charge_async(folder: str, name: str) -> Point:
    return charge(folder, name)


@queue.task(executor="process", retry=Retry(1, base=0))
def recorded_steps(folder: str) -> list[Any]:
    job = current_job().sync
    seen = job.saved
    points = [job.step(name, charge, folder, name) for name in ("a", "b")]
    job.save(f"saved by run {job.attempt}")
    assert job.saved == f"saved by run {job.attempt}"
    if job.attempt == 1:
        raise ValueError("again")
    assert all(isinstance(point, Point) for point in points)
    return [point.x for point in points] + [seen]


@queue.task(executor="process", retry=Retry(1, base=0))
async def recorded_steps_async(folder: str) -> list[Any]:
    job = current_job()
    seen = job.saved
    points = await asyncio.gather(
        *(job.step(name, charge_async, folder, name) for name in ("a", "b"))
    )
    await job.save(f"saved by run {job.attempt}")
    if job.attempt == 1:
        raise ValueError("again")
    return [point.x for point in points] + [seen]


@queue.task(executor="process", retry=NO_RETRY)
def step_then_waits(folder: str) -> list[Any]:
    job = current_job().sync
    first = job.step("add", lambda: job.add(child, 1).id)
    job.add(child, 2)
    charge(folder, "run")
    return [first, dict(job.wait_for_children())]


@queue.task(executor="process", retry=Retry(1, base=0))
def saves_and_snoozes() -> Any:
    if current_job().saved is not None:
        return current_job().saved
    current_job().sync.save("cursor")
    raise Snooze(0.01)


@queue.task(executor="process", retry=NO_RETRY)
def step_under_a_lost_lease(folder: str) -> None:
    Path(folder, "begun").touch()
    wait_until(Path(folder, "go").exists, "the test")
    try:
        current_job().sync.step("charge", charge, folder, "charge")
        Path(folder, "went on").touch()
    finally:  # LeaseLost, or CancelledError: the worker stops the run at the same time
        Path(folder, "stopped").touch()


@queue.task(executor="process", retry=NO_RETRY)
def step_too_large(folder: str) -> None:
    current_job().sync.step("charge", lambda: charge(folder, "charge") and "x" * 2**21)
