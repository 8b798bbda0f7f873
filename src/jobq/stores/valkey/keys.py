"""Builds every key. All keys of a queue begin with its prefix, whose hash tag puts them into one
slot.

Every key begins with the name of a space (`?prefix=` of the URL, `jq` by default). Stores in
different spaces can share a server and do not see each other. Functions of the library take the
space from the keys they are called with.

lua/keys.lua names the keys behind a prefix (`m`, `h`, `j:<id>`, …); `KEY` has the same names. No
other Python module spells a key. Names of tenants and queues are escaped, so braces and colons in
them cannot move a key to another slot or queue.
"""

from __future__ import annotations

import re
from binascii import crc_hqx
from functools import lru_cache
from pathlib import Path
from urllib.parse import unquote
from zlib import crc32

from jobq.core.records.jobs import QueueName

# The names of keys and packed fields, read from lua/keys.lua and lua/fields.lua.
#
# Lua and Python share these definitions. A definition is a line `TABLE.name = value`. `with_values`
# replaces the names in a Lua file by their values, so the server executes constants and looks up no
# names.

LUA = Path(__file__).parent / "lua"
DEFINITIONS = ("keys", "fields")
"""The Lua files that hold definitions and no code."""

_DEFINITION = re.compile(r'^([A-Z_]+)\.([a-z0-9_]+) = ("[^"]*"|\d+)(?: --.*)?$')


def _read() -> dict[str, dict[str, str]]:
    tables: dict[str, dict[str, str]] = {}
    for file in DEFINITIONS:
        for line in (LUA / f"{file}.lua").read_text().splitlines():
            if line and not line.startswith("--"):
                found = _DEFINITION.match(line)
                if found is None:
                    raise ValueError(f"lua/{file}.lua has a line that is not a definition: {line}")
                table, name, value = found.groups()
                tables.setdefault(table, {})[name] = value
    return tables


TABLES = _read()
"""Every definition, by table and name. Values are Lua literals."""

_USE = re.compile(rf"(?<![\w.])({'|'.join(TABLES)})\.([a-z0-9_]+)")


def with_values(text: str) -> str:
    """The text of a Lua file with the value of each definition in place of its name."""
    return _USE.sub(lambda found: TABLES[found[1]][found[2]], text)


def texts(table: str) -> dict[str, str]:
    """The definitions of a table whose values are text."""
    return {name: value[1:-1] for name, value in TABLES[table].items() if value[0] == '"'}


def numbers(table: str) -> dict[str, int]:
    """The definitions of a table whose values are numbers."""
    return {name: int(value) for name, value in TABLES[table].items() if value[0] != '"'}


KEY = texts("KEY")
"""The keys behind a prefix, by their names in lua/keys.lua."""
_UNSAFE = re.compile(r"[%{}:\x00-\x1f\x7f]")

SPACE = "jq"
"""The space of a URL without `?prefix=`."""


def escape(name: str) -> str:
    """Escape a name for use inside a hash tag. Copied by lua/alter.lua (sibling)."""
    return _UNSAFE.sub(lambda found: f"%{ord(found.group()):02x}", name)


class Space:
    """The keys of one space."""

    def __init__(self, name: str = SPACE) -> None:
        self.queues = f"{name}:{{queues}}"
        """The list of queues: a set of prefixes."""
        self.scheduled = f"{name}:{{scheduled}}"
        """The queues with schedules (see schedules.py)."""
        self.workers = f"{name}:{{workers}}"
        """The workers that are running, as they last announced themselves."""
        self.layout = f"{name}:{{layout}}"
        """The layout of the stored data (see connection.py)."""
        self._name = name
        self.prefix = lru_cache(maxsize=4096)(self._prefix)
        """The prefix of all keys of a queue."""
        self.partition_prefix = lru_cache(maxsize=4096)(self._partition_prefix)
        """The prefix of all keys of one partition."""

    def _prefix(self, queue: QueueName) -> str:
        return f"{self._name}:{{{escape(queue.tenant)}:{escape(queue.queue)}}}"

    def _partition_prefix(self, queue: QueueName, partition: int) -> str:
        return f"{self._name}:{{{escape(queue.tenant)}:{escape(queue.queue)}:{partition}}}"

    def handle_channel(self, name: str) -> str:
        """The channel on which one handle receives the ends of jobs."""
        return f"{self._name}:handle:{name}"

    def cancel_channel(self, worker: str) -> str:
        """The channel on which a worker receives which of its jobs are asked to stop."""
        return f"{self._name}:{KEY['cancel_channel']}{worker}"

    def leadership(self, name: str) -> str:
        """The key that holds which worker leads."""
        return f"{self._name}:{{office:{escape(name)}}}"

    def manifest(self, tenant: str, flow: str) -> str:
        """The key that decides whether a flow is submitted."""
        return f"{self._name}:{{flow:{escape(tenant)}:{escape(flow)}}}"


@lru_cache(maxsize=4096)
def queue_of(text: str) -> QueueName:
    """The queue of a prefix, or of a key that begins with one."""
    tenant, queue, *_ = text[text.index("{") + 1 : text.index("}")].split(":")
    return QueueName(unquote(tenant), unquote(queue))


def partition_of(key: str | None, id: str, partitions: int) -> int:
    """The partition of a job: by its key, so jobs of one key are together, or else by its id."""
    return crc32((id if key is None else key).encode()) % partitions


def turn_of(call: str, partitions: int) -> int:
    """The partition that a call claims from first: another one each time, the same if repeated."""
    return crc32(call.encode()) % partitions


def log_channel(prefix: str) -> str:
    """The channel that announces that the event log of a prefix has grown."""
    return prefix + KEY["log_channel"]


def noted_channel(prefix: str, id: str) -> str:
    """The channel that announces that the run of a job stored progress or log lines."""
    return prefix + KEY["noted_channel"] + id


def wake_key(prefix: str, worker: str) -> str:
    """The list from which a sleeping worker pops markers."""
    return prefix + KEY["wake"] + worker


def outbox(prefix: str) -> str:
    """Messages to other queues that have not been taken yet."""
    return prefix + KEY["outbox"]


def counters(prefix: str) -> str:
    """The packed counters of a queue."""
    return prefix + KEY["counters"]


def schedule_specs(prefix: str) -> str:
    """The schedules of a queue, as their callers packed them."""
    return prefix + KEY["schedule_specs"]


def schedule_states(prefix: str) -> str:
    """The states of a queue's schedules."""
    return prefix + KEY["schedule_states"]


def schedules_due(prefix: str) -> str:
    """The schedules of a queue by their next time."""
    return prefix + KEY["schedules_due"]


def readers(prefix: str) -> str:
    """The positions of the registered readers of an event log."""
    return prefix + KEY["readers"]


def settings(prefix: str) -> str:
    """The settings of a queue."""
    return prefix + KEY["settings"]


def hash_slot_of(key: str) -> int:
    """The Cluster slot of a key: CRC16 (XMODEM) of its hash tag."""
    start = key.find("{")
    if start >= 0:
        end = key.find("}", start + 1)
        if end > start + 1:
            key = key[start + 1 : end]
    return _hash_slot(key)


@lru_cache(maxsize=16384)
def _hash_slot(tag: str) -> int:
    return crc_hqx(tag.encode(), 0) % 16384
