"""Tasks with permissions, for tests with a real Worker."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from jobq import Permissions, Queue, current_job
from jobq.executors import handlers
from tests.executors.sandbox.attempts import ATTEMPTS, Target

# A worker starts a child for each set of permissions of its queues, so tests choose what they need.
plain = Queue("plain", "memory://plain")
named = Queue("named", "memory://named")
various = Queue("various", "memory://various")
free = Queue("free", "memory://free")
QUEUES = (plain, named, various, free)
NAMED = Permissions(env=["NAMED"], read=["/proc"])
_LEFT: list[Any] = []


def _attempt(name: str, target: dict[str, Any]) -> str:
    return str(ATTEMPTS[name](Target(**{**target, "own": os.environ["TMPDIR"]})))


@plain.task(executor="process", retry=0, permissions=Permissions())
def attempt(name: str, target: dict[str, Any]) -> str:
    return _attempt(name, target)


@various.task(executor="process", retry=0, permissions=Permissions(network=[1]))
def attempt_with_ports(name: str, target: dict[str, Any]) -> str:
    return _attempt(name, target)


@various.task(executor="process", retry=0, permissions=Permissions(network=True))
def attempt_with_network(name: str, target: dict[str, Any]) -> str:
    return _attempt(name, target)


@various.task(executor="process", retry=0, permissions=Permissions(memory="512M", files=64))
def attempt_with_limits(name: str, target: dict[str, Any]) -> str:
    return _attempt(name, target)


@various.task(executor="process", retry=0, permissions=Permissions(processes=3, run=["/bin/sleep"]))
def attempt_with_processes(name: str, target: dict[str, Any]) -> str:
    return _attempt(name, target)


@various.task(executor="process", retry=0, permissions=Permissions(processes=3, run=["/bin/sleep"]))
def leave_process() -> int:
    return subprocess.Popen(["/bin/sleep", "600"]).pid


@free.task(executor="process", retry=0)
def leave_process_freely() -> int:
    return subprocess.Popen(["/bin/sleep", "600"]).pid


@named.task(executor="process", retry=0, permissions=NAMED)
def variables() -> dict[str, str]:
    return dict(os.environ)


@named.task(executor="process", retry=0, permissions=NAMED)
def first_variables() -> str:
    return Path("/proc/self/environ").read_text()


@plain.task(executor="process", retry=0, permissions=Permissions())
def leave() -> tuple[int, str]:
    """Leave a file in the temporary folder, and its descriptor open."""
    path = Path(os.environ["TMPDIR"], "left")
    _LEFT.append(file := path.open("w+"))
    file.write("of the first job")
    file.flush()
    return file.fileno(), str(path)


@plain.task(executor="process", retry=0, permissions=Permissions())
def look(descriptor: int, path: str) -> tuple[str, bool]:
    return os.pread(descriptor, 100, 0).decode(), os.path.exists(path)


@plain.task(executor="process", retry=0, permissions=Permissions())
async def use_everything() -> str:
    """Do what a well-behaved handler does."""
    import sqlite3
    import zoneinfo
    from concurrent.futures import ThreadPoolExecutor

    job = current_job()
    await job.progress({"done": 1})
    await job.log("a line")
    with ThreadPoolExecutor(2) as threads:
        assert list(threads.map(abs, [-1, -2])) == [1, 2]
    connection = sqlite3.connect(os.path.join(os.environ["TMPDIR"], "db"))
    connection.execute("create table t (x)")
    connection.close()
    zone = zoneinfo.ZoneInfo("Europe/Berlin")
    child = await job.add(note, str(zone))
    return child.id


@plain.task
async def note(text: str) -> str:
    return text


@plain.task(executor="process", retry=0, permissions=Permissions())
def known_urls() -> list[str]:
    return [plain.url, *handlers._moves.values()]
