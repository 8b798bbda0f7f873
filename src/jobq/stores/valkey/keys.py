"""Every key there is. All keys of a queue begin with its prefix, whose hash tag puts them into one slot.

In front of everything stands the name of a space (`?prefix=` of the URL, `jq` by default): stores with different ones share a
server and see nothing of each other. Functions of the library learn it from the keys they are called with.

The parts inside a prefix (`m`, `h`, `j:<id>`, …) are named in lua/keys.lua, from which `KEY` is read; no other Python
module spells one. Names are escaped, so that braces and colons in them cannot move a key to another slot or queue.
"""

from __future__ import annotations

import re
from functools import lru_cache
from urllib.parse import unquote
from zlib import crc32

from jobq.core.records import QueueName
from jobq.stores.valkey.lua_names import texts

KEY = texts("KEY")
_UNSAFE = re.compile(r"[%{}:\x00-\x1f\x7f]")

SPACE = "jq"
"""The space of a URL that names none."""


def escape(name: str) -> str:
    """A name that can stand inside a hash tag."""
    return _UNSAFE.sub(lambda found: f"%{ord(found.group()):02x}", name)


class Space:
    """The keys that begin with the name of one space."""

    def __init__(self, name: str = SPACE) -> None:
        self.queues = f"{name}:{{queues}}"
        """The set of queues there are, as prefixes."""
        self.workers = f"{name}:{{workers}}"
        """Workers as they last said they were."""
        self.layout = f"{name}:{{layout}}"
        """Which layout the data of the store has."""
        self._name = name
        self.prefix = lru_cache(maxsize=4096)(self._prefix)
        """What all keys of a queue begin with."""
        self.partition_prefix = lru_cache(maxsize=4096)(self._partition_prefix)
        """What all keys of one partition of a partitioned queue begin with."""

    def _prefix(self, queue: QueueName) -> str:
        return f"{self._name}:{{{escape(queue.tenant)}:{escape(queue.queue)}}}"

    def _partition_prefix(self, queue: QueueName, partition: int) -> str:
        return f"{self._name}:{{{escape(queue.tenant)}:{escape(queue.queue)}:{partition}}}"

    def handle_channel(self, name: str) -> str:
        """Where one handle is told of the ends of jobs."""
        return f"{self._name}:handle:{name}"

    def cancel_channel(self, worker: str) -> str:
        """Where a worker is told which of its jobs are asked to stop."""
        return f"{self._name}:{KEY['cancel_channel']}{worker}"

    def leadership(self, name: str) -> str:
        """Which worker leads."""
        return f"{self._name}:{{office:{escape(name)}}}"

    def manifest(self, tenant: str, flow: str) -> str:
        """Whether a flow is submitted."""
        return f"{self._name}:{{flow:{escape(tenant)}:{escape(flow)}}}"


@lru_cache(maxsize=4096)
def queue_of(text: str) -> QueueName:
    """The queue a prefix belongs to."""
    tenant, queue, *_ = text[text.index("{") + 1 : text.index("}")].split(":")
    return QueueName(unquote(tenant), unquote(queue))


def partition_of(key: str | None, id: str, partitions: int) -> int:
    """Where a job of a partitioned queue belongs: jobs of one key together, others by id."""
    return crc32((id if key is None else key).encode()) % partitions


def turn_of(call: str, partitions: int) -> int:
    """The partition an exchange looks into first: another one each time, but the same if it is repeated."""
    return crc32(call.encode()) % partitions


def log_channel(prefix: str) -> str:
    """Where it is told that the log of a queue (or of one partition) has grown."""
    return prefix + KEY["log_channel"]


def wake_key(prefix: str, worker: str) -> str:
    """Where a sleeping worker waits for a marker."""
    return prefix + KEY["wake"] + worker


def outbox(prefix: str) -> str:
    """Messages of a queue to others that have not been taken yet."""
    return prefix + KEY["outbox"]


def counters(prefix: str) -> str:
    """What a queue counts, packed."""
    return prefix + KEY["counters"]


def schedule_specs(prefix: str) -> str:
    """Schedules of a queue, as their callers packed them."""
    return prefix + KEY["schedule_specs"]


def readers(prefix: str) -> str:
    """Where the registered readers of a log stand."""
    return prefix + KEY["readers"]


def settings(prefix: str) -> str:
    """What is stored about a queue."""
    return prefix + KEY["settings"]


def slot_of(key: str) -> int:
    """The cluster slot of a key: CRC16 (XMODEM) of its hash tag."""
    start = key.find("{")
    if start >= 0:
        end = key.find("}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return _slot(key)


@lru_cache(maxsize=16384)
def _slot(tag: str) -> int:
    crc = 0
    for byte in tag.encode():
        crc ^= byte << 8
        for _ in range(8):
            crc = crc << 1 ^ 0x1021 if crc & 0x8000 else crc << 1
        crc &= 0xFFFF
    return crc % 16384
