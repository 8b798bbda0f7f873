"""The identity of a worker: its name and incarnation; and its intervals and timeouts."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jobq.core.records.jobs import QueueName
from jobq.core.records.workers import WorkerRecord
from jobq.engine.service import wall_clock
from jobq.errors import ConfigError
from jobq.stores.base import Store


def default_name() -> str:
    """A name that no other worker has: the host, the process id and a random part."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"


class Identity:
    """The name and incarnation of one worker.

    The incarnation begins with the machine and the process, so that other workers of that machine
    can tell when the process has ended.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.incarnation = f"{_machine()}.{_process(os.getpid())}.{secrets.token_hex(4)}"
        self.started_ms = wall_clock()

    def record(
        self,
        queues: Sequence[QueueName],
        concurrency: int,
        *,
        active: int = 0,
        paused: bool = False,
        draining: bool = False,
    ) -> WorkerRecord:
        """Return the worker's record with its present state."""
        return WorkerRecord(
            name=self.name,
            incarnation=self.incarnation,
            host=socket.gethostname(),
            pid=os.getpid(),
            queues=tuple(queues),
            concurrency=concurrency,
            active=active,
            paused=paused,
            draining=draining,
            started_ms=self.started_ms,
            seen_ms=wall_clock(),
        )


def is_gone(other: WorkerRecord) -> bool:
    """Return whether the process of a worker has certainly ended.

    Always False for a worker on another machine or in another container.
    """
    machine, _, rest = other.incarnation.partition(".")
    if machine != _machine():
        return False
    if other.pid == os.getpid():  # this process, or an earlier one with the same pid
        return rest.partition(".")[0] != _process(os.getpid())
    try:
        os.kill(other.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # the process exists, and belongs to another user
    return False


@cache
def _machine() -> str:
    """Identify this boot of this machine, and its pid namespace: containers have their own."""
    facts = [socket.gethostname()]
    with suppress(OSError):
        facts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
    with suppress(OSError):
        facts.append(str(Path("/proc/self/ns/pid").stat().st_ino))
    return hashlib.blake2b("\n".join(facts).encode("utf-8", "replace"), digest_size=4).hexdigest()


@cache
def _process(pid: int) -> str:
    """Identify this process by a random token, because pids are reused. A fork has another pid."""
    return secrets.token_hex(4)


async def take_name(store: Store, record: WorkerRecord, *, ttl_ms: int) -> None:
    """Announce a worker that is about to start. Raises ConfigError if a live worker has its name.

    A worker whose process has ended, or that sent no beat for its ttl, loses the name. If it is
    still running, it learns so with its next beat.
    """
    if not (await store.beat(record, ttl_ms=ttl_ms)).displaced:
        return
    other = next((worker for worker in await store.workers() if worker.name == record.name), None)
    if other is not None and not is_gone(other):
        silent_s = max(0.0, (record.seen_ms - other.seen_ms) / 1000)
        raise ConfigError(
            f"a worker named {record.name!r} is alive (process {other.pid} on {other.host}, "
            f"last seen {silent_s:.0f} s ago): give this worker another name, or stop the other "
            "one first. The name of a dead worker is free after three missed heartbeats"
        )
    await store.beat(record, ttl_ms=ttl_ms, displace=True)


# The intervals and timeouts that a worker uses. Users set some of them with `Worker(…)`.


@dataclass(frozen=True, kw_only=True)
class WorkerSettings:
    """Times are in milliseconds.

    In a large fleet `poll_ms`, `beat_ms` and the interval between attempts to lead grow with the
    number of workers (core/rules/fleet.py).
    """

    concurrency: int = 100
    lease_ms: int = 15_000
    drain_ms: int = 30_000
    # The longest time without claims while a job on its last chance runs.
    last_chance_ms: int = 60_000
    # From asking a run to stop until it is settled although its handler still runs.
    grace_ms: int = 5_000
    # An idle worker claims this often even if nothing wakes it, because signals can be lost.
    poll_ms: int = 5_000
    # An exchange without a reply is repeated. That is safe: the call has the same name.
    exchange_timeout_ms: int = 30_000
    # How long a stopping worker waits for stores that do not reply, all in all.
    close_timeout_ms: int = 3_500
    beat_ms: int = 5_000
    tick_ms: int = 5_000
    schedule_ms: int = 1_000
    # How long a leadership lasts without renewal. If the leader dies, upkeep and schedules stop for
    # this long, and up to 9 s more until another worker asks to lead.
    leadership_ms: int = 15_000
