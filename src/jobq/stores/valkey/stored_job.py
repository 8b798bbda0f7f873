"""The stored form of a job: its record and its run, unpacked. lua/fields.lua has the layout."""

from __future__ import annotations

import struct
from struct import Struct
from typing import NamedTuple

import msgspec
from msgspec import field

from jobq.core.records.jobs import (
    NO_OPTIONS,
    CallOptions,
    ChildPolicy,
    RetryData,
    UniqueMode,
    UniqueSpec,
    call_options,
)
from jobq.stores.valkey.keys import numbers

_FLAGS, _RECORD = numbers("FLAG"), numbers("RECORD")
_MORE, _LATER, _GIVEN_ID = _FLAGS["more"], _FLAGS["later"], _FLAGS["given_id"]
RUN_FLAGS = numbers("RUN_FLAG")
"""The bits of `RunFields.flags`, by name."""
# Times have 6 bytes, which struct reads as 2 and 4.
_head = Struct(">HIBB").unpack_from  # RECORD.head: created, flags, length of name and key
_HEAD_SIZE = _RECORD["short_nk_at"] - 1
_lengths = Struct(">HH").unpack_from  # RECORD.lengths: of name and key, of the options
_LENGTHS_SIZE = _RECORD["long_nk_at"] - _RECORD["short_nk_at"]
_later = Struct(">HI3s").unpack_from  # RECORD.later: due, life
_LATER_SIZE = 9
_run = Struct(">I3s3sHIHI8sHBB").unpack_from  # RUN.format
_RUN_SIZE = numbers("RUN")["token_at"] - 1
_PAIR = b"\x92"  # the head of a MessagePack array of two
_decode = msgspec.msgpack.Decoder().decode
_names: dict[bytes, tuple[str, str | None]] = {}
_MAX_NAMES = 10_000

BROKEN = (msgspec.MsgspecError, struct.error, ValueError, TypeError, IndexError)
"""What unpacking an unreadable record may raise."""


class StoredOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options in a record. `jobs._options` writes them."""

    # begin scripts/options.py: recorded
    codec: str = "json"
    priority: int = 0
    lifo: bool = False
    delay_ms: int = field(name="delay", default=0)
    at_ms: int | None = field(name="at", default=None)
    ttl_ms: int | None = field(name="ttl", default=None)
    result_ttl_ms: int | None = field(name="result_ttl", default=None)
    retry: RetryData | None = None
    timeout_ms: int | None = field(name="timeout", default=None)
    max_stalls: int | None = None
    cost: int = 1
    on_child_failure: ChildPolicy = field(name="policy", default="fail")
    schedule: str | None = None
    origin: str | None = None
    meta: dict[str, str] | None = None
    # end scripts/options.py
    lock: str | None = None
    lock_mode: UniqueMode = "simple"
    lock_ttl_ms: int | None = field(name="lock_ttl", default=None)

    @property
    def unique(self) -> UniqueSpec | None:
        """The unique lock, which is stored in three parts."""
        if self.lock is None:
            return None
        return UniqueSpec(lock=self.lock, mode=self.lock_mode, ttl_ms=self.lock_ttl_ms)

    def as_call_options(self) -> CallOptions:
        """The same as callers gave them."""
        return NO_OPTIONS if self is DEFAULTS else call_options(self)


DEFAULTS = StoredOptions()
_options = msgspec.msgpack.Decoder(StoredOptions).decode


RecordFields = tuple[int, int, int, str, str | None, StoredOptions, bytes]
"""created, due (0: when it was created), life, name, key, options, payload.

A plain tuple: every lease unpacks one, and a named tuple takes longer to make.
"""


class RunFields(NamedTuple):
    """The fields of a run that Python needs."""

    attempt: int
    failures: int
    stalls: int
    started: int
    due: int
    flags: int
    token: str
    worker: str


NO_RUN = RunFields(0, 0, 0, 0, 0, 0, "", "")
"""Stands for a run that cannot be read."""


def record_fields(rec: bytes) -> RecordFields:
    """Unpack a record. Raises one of BROKEN if it cannot be read."""
    c1, c2, flags, nn = _head(rec)
    start, no, due, life = _HEAD_SIZE, 0, 0, 0
    if flags & _MORE:
        nn, no = _lengths(rec, start)
        start += _LENGTHS_SIZE
    if flags & _LATER:
        d1, d2, lives = _later(rec, start)
        start, due, life = start + _LATER_SIZE, d1 << 32 | d2, int.from_bytes(lives)
    name, key = _name_and_key(rec[start : start + nn])
    start += nn
    options = _options(rec[start : start + no]) if no else DEFAULTS
    return c1 << 32 | c2, due, life, name, key, options, rec[start + no :]


def has_given_id(rec: bytes) -> bool:
    """Whether the caller chose the id of a record's job."""
    return len(rec) >= _HEAD_SIZE and _head(rec)[2] & _GIVEN_ID > 0


def run_fields(data: bytes) -> RunFields:
    """Unpack a run."""
    attempt, failures, stalls, s1, s2, d1, d2, _order, _ticket, flags, n = _run(data)
    token = data[_RUN_SIZE : _RUN_SIZE + n].decode()
    return RunFields(
        attempt,
        int.from_bytes(failures),
        int.from_bytes(stalls),
        s1 << 32 | s2,
        d1 << 32 | d2,
        flags,
        token,
        data[_RUN_SIZE + n :].decode(),
    )


def _name_and_key(nk: bytes) -> tuple[str, str | None]:
    found = _names.get(nk)
    if found is None:
        if len(_names) >= _MAX_NAMES:
            _names.clear()
        name, key = _decode(_PAIR + nk)
        found = _names[nk] = (name, key)
    return found
