"""Who a worker is: its name, and the incarnation that tells two processes of one name apart."""

from __future__ import annotations

import hashlib
import os
import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from jobq.core.records import QueueName
from jobq.core.workers import WorkerRecord
from jobq.engine.clock import wall_clock
from jobq.errors import ConfigError
from jobq.stores.base import Store


class Identity:
    """One worker. The incarnation begins with the machine and the process, so that others can tell when that is gone."""

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
        """The worker as it is now."""
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
    """Whether the process of a worker has surely ended. Of another machine or container nobody here can know."""
    machine, _, rest = other.incarnation.partition(".")
    if machine != _machine():
        return False
    if other.pid == os.getpid():  # this process, or one before it that had the same number
        return rest.partition(".")[0] != _process(os.getpid())
    try:
        os.kill(other.pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass  # it is there, and somebody else's
    return False


@cache
def _machine() -> str:
    """This machine since its last start, and the space of process numbers: a container has one of its own."""
    facts = [socket.gethostname()]
    with suppress(OSError):
        facts.append(Path("/proc/sys/kernel/random/boot_id").read_text())
    with suppress(OSError):
        facts.append(str(Path("/proc/self/ns/pid").stat().st_ino))
    return hashlib.blake2b("\n".join(facts).encode("utf-8", "replace"), digest_size=4).hexdigest()


@cache
def _process(pid: int) -> str:
    """This process, by chance: numbers are used again. By pid, because a fork is another one."""
    return secrets.token_hex(4)


async def take_name(store: Store, record: WorkerRecord, *, ttl_ms: int) -> None:
    """Announce a worker that is about to start. ConfigError if a live worker has its name.

    One whose process is gone, or that was silent for its ttl, gives the name up. If it wakes, its next beat tells it so."""
    if not (await store.beat(record, ttl_ms=ttl_ms)).displaced:
        return
    other = next((worker for worker in await store.workers() if worker.name == record.name), None)
    if other is not None and not is_gone(other):
        silent_s = max(0.0, (record.seen_ms - other.seen_ms) / 1000)
        raise ConfigError(
            f"a worker named {record.name!r} is alive (process {other.pid} on {other.host}, last heard of {silent_s:.0f} s ago): "
            "give this one another name, or stop that one first; a worker that died gives its name up after three missed beats"
        )
    await store.beat(record, ttl_ms=ttl_ms, displace=True)
