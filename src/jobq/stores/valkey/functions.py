"""The function library: the Lua files in order, under a name that contains its version.

Releases with different versions use functions of different names and can run side by side. Every
edit of the library changes DIGEST, which a test compares with a checked-in one. So an edit forces
a decision: if the new library does not understand data of the old one, raise VERSION.
"""

from __future__ import annotations

from hashlib import sha256

from jobq.stores.valkey.constants import constants
from jobq.stores.valkey.lua_names import LUA, with_values

VERSION = "jobq_v2"

FILES = (
    "bytes",
    "commands",
    "context",
    "clock",
    "counters",
    "log",
    "record",
    "stalls",
    "unknown",
    "verdicts",
    "waiting",
    "keyed",
    "holds",
    "rates",
    "move",
    "unique",
    "bounds",
    "signals",
    "upkeep",
    "claim",
    "flow",
    "dead_letters",
    "staging",
    "put",
    "uniform",
    "restore",
    "completions",
    "settle",
    "leases",
    "alter",
    "reads",
    "readers",
    "queues",
    "purges",
    "schedules",
    "presence",
    "manifest",
)
_SHARED = """local J = {}
local call, mpack, munpack = redis.call, cmsgpack.pack, cmsgpack.unpack
local spack, sunpack, null = struct.pack, struct.unpack, cjson.null
"""


def _text() -> tuple[str, str]:
    blocks = "".join(f"do\n{_read(name)}end\n" for name in FILES)
    body = (
        f"local function build()\n{_SHARED}{constants()}{blocks}return J\nend\n{_read('register')}"
    )
    digest = sha256(body.encode()).hexdigest()[:16]
    return f'#!lua name={VERSION}\nlocal VERSION, DIGEST = "{VERSION}", "{digest}"\n{body}', digest


def _read(name: str) -> str:
    return with_values((LUA / f"{name}.lua").read_text())


LIBRARY, DIGEST = _text()


def function(name: str) -> bytes:
    """The full name of a function, as FCALL takes it."""
    return f"{VERSION}_{name}".encode()
