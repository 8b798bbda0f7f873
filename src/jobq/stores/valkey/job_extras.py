"""The extras of a job, which few jobs have, and failures.

EXTRA in lua/fields.lua has the fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple

import msgspec

from jobq.core import verdicts
from jobq.core.records import Deferred, Failure, Input, JobKey, Steps
from jobq.stores.valkey.keys import queue_of
from jobq.stores.valkey.lua_names import numbers, texts
from jobq.stores.valkey.stored_job import BROKEN

_FIELD = {name: field.encode() for name, field in texts("EXTRA").items()}
_EDGE, _PARENT, _RECEIVED = _FIELD["edge"], _FIELD["parent"], _FIELD["received"]
_STEP = _FIELD["step"]
# Times have 6 bytes, which struct reads as 2 and 4.
_short_head = Struct(">IHI").unpack_from  # FAILED_RUN.short: attempt, time
_SHORT_SIZE = numbers("FAILED_RUN")["short_end"]
_failed_run = Struct(">IHIH").unpack_from  # FAILED_RUN.format: attempt, time, length of worker
_FAILED_RUN_SIZE = numbers("FAILED_RUN")["worker_before"]
_failure = msgspec.msgpack.Decoder(Failure).decode


class Extras(NamedTuple):
    """The extras of a job."""

    saved: bytes | None = None
    progress: bytes | None = None
    failure: Failure | None = None
    failed_last: bool = False  # the job's failure is its last failed run
    unknown_ms: int | None = None
    deferred: Deferred | None = None
    inputs: tuple[Input, ...] = ()
    signals: tuple[tuple[str, bytes], ...] = ()
    parents: tuple[JobKey, ...] = ()
    children: tuple[JobKey, ...] = ()
    steps: Steps = ()


NO_EXTRAS = Extras()


def extras(flat: Sequence[bytes]) -> Extras:
    """Extras from a flat hash: field, value, …"""
    if not flat:
        return NO_EXTRAS
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    children: dict[int, JobKey] = {}
    parents: set[JobKey] = set()
    signals: dict[int, tuple[str, bytes]] = {}
    steps: list[tuple[str, bytes]] = []
    for field, value in fields.items():
        kind, rest = field[:2], field[2:]
        if kind == _EDGE:
            children[int(value.partition(b":")[0])] = _job(rest)
        elif kind == _PARENT:
            parents.add(_job(rest.rpartition(b"\n")[0]))
        elif kind == _RECEIVED:
            name, _, data = value.partition(b"\n")
            signals[int(rest)] = (name.decode(), data)
        elif kind == _STEP:
            steps.append((rest.decode(), value))
    ended = [(job, fields.get(_FIELD["input"] + b"%d" % n)) for n, job in sorted(children.items())]
    failure, put_off = fields.get(_FIELD["failure"]), fields.get(_FIELD["put_off"])
    deferred = fields.get(_FIELD["deferred"])
    return Extras(
        saved=fields.get(_FIELD["saved"]),
        progress=fields.get(_FIELD["progress"]),
        failure=_short_failure(failure) if failure else None,
        failed_last=failure == b"",
        unknown_ms=None if put_off is None else int(put_off.split(b"\t")[1]),
        deferred=None if deferred is None else _deferred(deferred),
        inputs=tuple(_input(job, how) for job, how in ended if how is not None),
        signals=tuple(signal for _, signal in sorted(signals.items())),
        parents=tuple(sorted(parents)),
        children=tuple(job for job, _ in ended),
        steps=tuple(sorted(steps)),
    )


def _job(text: bytes) -> JobKey:
    queue, _, id = text.decode().partition("\n")
    return JobKey(queue_of(queue), id)


def _deferred(data: bytes) -> Deferred:
    reason, attempt, unfit_ms, text = data.decode().split("\t", 3)
    return Deferred("unfit" if reason == "unfit" else "unknown", text, int(attempt), int(unfit_ms))


def _input(job: JobKey, how: bytes) -> Input:
    """How a child ended (INPUT in lua/fields.lua)."""
    n = how[1]
    codec, kind, rest = how[2 : 2 + n].decode(), how[2 + n : 3 + n], how[3 + n :]
    if kind == b"\x02":  # as jobq 0.1 wrote it
        return Input(job=job, codec=codec, failure=_failure(rest))
    if kind == b"\x03":
        return Input(job=job, codec=codec, failure=_run_failure(rest))
    return Input(job=job, codec=codec, result=rest if kind else None)


def _short_failure(data: bytes) -> Failure:
    attempt, a1, a2 = _short_head(data)
    failure = _failure(data[_SHORT_SIZE:])
    return msgspec.structs.replace(failure, attempt=attempt, at_ms=a1 << 32 | a2)


def _run_failure(data: bytes) -> Failure:
    attempt, a1, a2, n = _failed_run(data)
    start = _FAILED_RUN_SIZE + n
    worker = data[_FAILED_RUN_SIZE:start].decode()
    return msgspec.structs.replace(
        _failure(data[start:]), attempt=attempt, at_ms=a1 << 32 | a2, worker=worker or None
    )


def failed_run(data: bytes) -> Failure:
    """The failure of a failed run. One that cannot be read becomes a failure that says so."""
    try:
        return _run_failure(data)
    except BROKEN:
        return verdicts.unreadable(attempt=0, worker=None, now_ms=0)
