"""From what the functions answer to records. The layout of a job's record and run is told in lua/record.lua."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from struct import Struct
from typing import Any, NamedTuple

import msgspec

from jobq.core import verdicts
from jobq.core.call_options import NO_OPTIONS, CallOptions
from jobq.core.commands import Altered
from jobq.core.event_log import STATES
from jobq.core.queues import Limits, LimitsRecord, QueueRecord, RetentionData
from jobq.core.records import (
    ChildPolicy,
    Failure,
    Input,
    JobKey,
    JobRecord,
    Lease,
    QueueName,
    RetryData,
    UniqueMode,
    UniqueSpec,
)
from jobq.stores.valkey.keys import queue_of

_head = Struct(">HIBB").unpack_from  # created (6 bytes, as 2 + 4), flags, length of name and key
_HEAD = 8
_more = Struct(">HH").unpack_from  # lengths of name and key, and of the options
_later = Struct(">HI3s").unpack_from  # due, life
_MORE, _LATER = 16, 64
_CANCEL, _LAST = 2, 64  # flags of a run: lua/base.lua
_run = Struct(">I3s3sHIHI8sHBB").unpack_from
_RUN = 34
_failed_at = Struct(">IHI").unpack_from  # attempt, and the time (6 bytes, as 2 + 4)
_failed_run = Struct(">IHIH").unpack_from  # the same, and the length of the worker's name
_FAILED_RUN = 12
_told = Struct(">BHIHHIHI").unpack_from  # a mark, when, and five lengths
_TOLD = 21
_COMPLETED = 4
_decode = msgspec.msgpack.Decoder().decode
_names: dict[bytes, tuple[str, str | None]] = {}
_NAMES_MAX = 10_000
ALTERED: dict[int, Altered] = {ord("d"): "done", ord("l"): "late", ord("m"): "missing"}
"""The letters that functions answer commands with."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a record that readers care for."""

    codec: str = "json"
    retry: RetryData | None = None
    timeout: int | None = None
    priority: int = 0
    schedule: str | None = None
    origin: str | None = None
    meta: dict[str, str] | None = None
    lifo: bool = False
    delay: int = 0
    at: int | None = None
    ttl: int | None = None
    result_ttl: int | None = None
    max_stalls: int | None = None
    cost: int = 1
    lock: str | None = None
    lock_mode: UniqueMode = "simple"
    lock_ttl: int | None = None
    policy: ChildPolicy = "fail"


_DEFAULT = Options()
_options = msgspec.msgpack.Decoder(Options).decode
_failure = msgspec.msgpack.Decoder(Failure).decode


class Run(NamedTuple):
    """A run, taken apart."""

    attempt: int
    failures: int
    stalls: int
    started: int
    due: int
    flags: int
    token: str
    worker: str


def run_of(data: bytes) -> Run:
    """The fields of a run."""
    attempt, failures, stalls, s1, s2, d1, d2, _order, _ticket, flags, n = _run(data)
    token = data[_RUN : _RUN + n].decode()
    return Run(
        attempt,
        int.from_bytes(failures),
        int.from_bytes(stalls),
        s1 << 32 | s2,
        d1 << 32 | d2,
        flags,
        token,
        data[_RUN + n :].decode(),
    )


def _names_of(nk: bytes) -> tuple[str, str | None]:
    found = _names.get(nk)
    if found is None:
        if len(_names) >= _NAMES_MAX:
            _names.clear()
        # Two values in a row are an array of two without its head.
        name, key = _decode(b"\x92" + nk)
        found = _names[nk] = (name, key)
    return found


def _parts(rec: bytes) -> tuple[int, int, int, str, str | None, Options, bytes]:
    """A record taken apart: created, first due (0: when created), life, name, key, options, payload."""
    c1, c2, kind, nn = _head(rec)
    start, no, due, life = _HEAD, 0, 0, 0
    if kind & _MORE:
        nn, no = _more(rec, start)
        start += 4
    if kind & _LATER:
        d1, d2, lives = _later(rec, start)
        start, due, life = start + 9, d1 << 32 | d2, int.from_bytes(lives)
    name, key = _names_of(rec[start : start + nn])
    start += nn
    options = _options(rec[start : start + no]) if no else _DEFAULT
    return c1 << 32 | c2, due, life, name, key, options, rec[start + no :]


def leases(
    queue: QueueName, granted: Sequence[Any], lease_ms: int, mark: str = ""
) -> tuple[Lease, ...]:
    """What a claim was granted (see lua/settle.lua). `mark` is added to the tokens: the partition they came from."""
    expires, stem, fresh, others = granted
    until, token = int(expires), stem.decode()
    started = until - lease_ms
    told = {
        others[n]: _lease(queue, others[n + 1 : n + 5], until, mark)
        for n in range(0, len(others), 5)
    }
    pairs = zip(fresh[::2], fresh[1::2], strict=True)
    return tuple(
        [
            told.get(n) or _fresh(queue, *next(pairs), f"{token}{n}{mark}", started, until)
            for n in range(len(told) + len(fresh) // 2)
        ]
    )


def _fresh(
    queue: QueueName, id: bytes, rec: bytes, token: str, started: int, expires: int
) -> Lease:
    """A job's first run: all there is to know is in its record."""
    try:
        created, _, life, name, key, options, payload = _parts(rec)
    except _BROKEN:
        return _unreadable(queue, id, rec, token, 1, started, expires)
    return Lease(
        queue=queue,
        id=id.decode(),
        token=token,
        life=life,
        name=name,
        payload=payload,
        codec=options.codec,
        attempt=1,
        failures=0,
        stalls=0,
        created_ms=created,
        started_ms=started,
        expires_ms=expires,
        key=key,
        retry=options.retry,
        timeout_ms=options.timeout,
        meta=options.meta,
    )


def _lease(queue: QueueName, told: Sequence[Any], expires: int, mark: str) -> Lease:
    id, rec, packed_run, extras = told
    run = run_of(packed_run)
    try:
        created, _, life, name, key, options, payload = _parts(rec)
        more = _extras(extras) if extras else _NO_EXTRAS
    except _BROKEN:
        return _unreadable(queue, id, rec, run.token + mark, run.attempt, run.started, expires)
    return Lease(
        queue=queue,
        id=id.decode(),
        token=run.token + mark,
        life=life,
        name=name,
        payload=payload,
        codec=options.codec,
        attempt=run.attempt,
        failures=run.failures,
        stalls=run.stalls,
        created_ms=created,
        started_ms=run.started,
        expires_ms=expires,
        key=key,
        retry=options.retry,
        timeout_ms=options.timeout,
        saved=more.saved,
        cancel_asked=run.flags & _CANCEL > 0,
        last_chance=run.flags & _LAST > 0,
        unknown_ms=more.unknown_ms,
        inputs=more.inputs,
        signals=more.signals,
        meta=options.meta,
    )


_BROKEN = (msgspec.MsgspecError, struct.error, ValueError, TypeError, IndexError)
"""What taking apart something unreadable may raise."""


def _unreadable(
    queue: QueueName, id: bytes, rec: bytes, token: str, attempt: int, started: int, expires: int
) -> Lease:
    """The lease of a job whose record cannot be read: enough to fail it."""
    return Lease(
        queue=queue,
        id=id.decode(errors="replace"),
        token=token,
        life=0,
        name="?",
        payload=rec,
        codec="json",
        attempt=attempt,
        failures=0,
        stalls=0,
        created_ms=started,
        started_ms=started,
        expires_ms=expires,
        unreadable=True,
    )


def record(queue: QueueName, view: Sequence[Any], *, with_errors: bool = False) -> JobRecord:
    """A job as the reads answer it. `with_errors`: they answered all failed runs that are kept, not only the last."""
    id, state, rec, packed_run, extras, finished, reason, result, failed = view
    run = run_of(packed_run)
    try:
        created, due, life, name, key, options, payload = _parts(rec)
        more = _extras(extras) if extras else _NO_EXTRAS
    except _BROKEN:  # listed all the same, with what was found as its payload
        created, due, life, name, key, options, payload, more = (
            0,
            0,
            0,
            "?",
            None,
            _DEFAULT,
            rec,
            _NO_EXTRAS,
        )
    failure = more.failure
    errors: tuple[Failure, ...] = ()
    if failed:
        errors = tuple([_failed_run_of(entry) for entry in failed])
        failure = errors[-1] if more.failed_last else failure
    where = STATES[state]
    return JobRecord(
        queue=queue,
        id=id.decode(),
        name=name,
        state=where,
        payload=payload,
        codec=options.codec,
        priority=options.priority,
        key=key,
        life=life,
        attempt=run.attempt,
        failures=run.failures,
        stalls=run.stalls,
        created_ms=created,
        due_ms=_due(where.value, run.due or due or created),
        started_ms=run.started or None,
        finished_ms=int(finished) if finished else None,
        worker=run.worker or None,
        result=result[1:] if result else None,
        failure=failure,
        errors=errors if with_errors else (),
        reason=reason.decode() if state == 6 else None,
        progress=more.progress,
        saved=more.saved,
        cancel_asked=run.flags & _CANCEL > 0 and state == 3,
        schedule=options.schedule,
        origin=options.origin,
        meta=options.meta,
        options=_stored(options),
        parents=more.parents,
        children=more.children,
    )


def _stored(options: Options) -> CallOptions:
    if options is _DEFAULT:
        return NO_OPTIONS
    unique = (
        None
        if options.lock is None
        else UniqueSpec(lock=options.lock, mode=options.lock_mode, ttl_ms=options.lock_ttl)
    )
    return CallOptions(
        lifo=options.lifo,
        delay_ms=options.delay,
        at_ms=options.at,
        ttl_ms=options.ttl,
        result_ttl_ms=options.result_ttl,
        retry=options.retry,
        timeout_ms=options.timeout,
        max_stalls=options.max_stalls,
        cost=options.cost,
        unique=unique,
        on_child_failure=options.policy,
    )


def completed(data: bytes) -> tuple[QueueName, JobRecord]:
    """A job told whole when it completed (lua/signals.lua)."""
    _, t1, t2, *sizes = _told(data)
    parts, start = [], _TOLD
    for size in sizes:
        parts.append(data[start : start + size])
        start += size
    prefix, id, rec, run, result = parts
    queue = queue_of(prefix.decode())
    return queue, record(queue, (id, _COMPLETED, rec, run, b"", t1 << 32 | t2, b"", result, ()))


def _due(state: str, due: int) -> int | None:
    return None if state == "blocked" else due


class Glance(NamedTuple):
    """What counters tell of a queue: whether a claim may find something now, or else when by itself."""

    ready: bool
    due_in: int | None


_waiting = Struct(">d").unpack_from
_timers = Struct(
    ">56xdd16xd"
).unpack_from  # lua/counters.lua: timer, leases and seen: the eighth, the ninth, the twelfth


def glance(data: bytes | None, now: int) -> Glance:
    """Counters, as far as a claim is concerned."""
    if data is None:
        return Glance(False, None)
    (waiting,), (*timers, seen) = _waiting(data), _timers(data)
    times = [int(t) for t in timers if t]
    due = max(0, min(times) - now) if times else None
    if now < seen:  # the clock was set back: only the server knows what is due
        return Glance(True, due)
    return Glance(waiting > 0 or due == 0, due)


class _Extras(NamedTuple):
    saved: bytes | None = None
    progress: bytes | None = None
    failure: Failure | None = None
    unknown_ms: int | None = None
    failed_last: bool = False  # its failure is its last failed run, which is kept elsewhere
    inputs: tuple[Input, ...] = ()
    signals: tuple[tuple[str, bytes], ...] = ()
    parents: tuple[JobKey, ...] = ()
    children: tuple[JobKey, ...] = ()


_NO_EXTRAS = _Extras()


def _extras(flat: Sequence[bytes]) -> _Extras:
    """What few jobs have (x:<id>, see lua/flow.lua)."""
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    children: dict[int, JobKey] = {}
    parents: set[JobKey] = set()
    signals: dict[int, tuple[str, bytes]] = {}
    for field, value in fields.items():
        sort, rest = field[:2], field[2:]
        if sort == b"e:":
            children[int(value.partition(b":")[0])] = _job(rest)
        elif sort == b"P:":
            parents.add(_job(rest.rpartition(b"\n")[0]))
        elif sort == b"g:":
            name, _, data = value.partition(b"\n")
            signals[int(rest)] = (name.decode(), data)
    ended = [(job, fields.get(b"i:%d" % n)) for n, job in sorted(children.items())]
    return _Extras(
        saved=fields.get(b"saved"),
        progress=fields.get(b"progress"),
        failure=_kept_failure(fields.get(b"failure")),
        failed_last=fields.get(b"failure") == b"",
        unknown_ms=int(fields[b"put_off"].split(b"\t")[1]) if b"put_off" in fields else None,
        inputs=tuple(_input(job, how) for job, how in ended if how is not None),
        signals=tuple(signal for _, signal in sorted(signals.items())),
        parents=tuple(sorted(parents)),
        children=tuple(job for job, _ in ended),
    )


def _job(text: bytes) -> JobKey:
    queue, _, id = text.decode().partition("\n")
    return JobKey(queue_of(queue), id)


def _input(job: JobKey, how: bytes) -> Input:
    n = how[1]
    codec, rest = how[2 : 2 + n].decode(), how[2 + n :]
    if rest[:1] == b"\x02":  # as jobq 0.1 wrote it
        return Input(job=job, codec=codec, failure=_failure(rest[1:]))
    if rest[:1] == b"\x03":
        return Input(job=job, codec=codec, failure=_failed(rest[1:]))
    return Input(job=job, codec=codec, result=rest[1:] if rest else None)


def _kept_failure(data: bytes | None) -> Failure | None:
    if not data:
        return None
    attempt, a1, a2 = _failed_at(data)
    return msgspec.structs.replace(_failure(data[10:]), attempt=attempt, at_ms=a1 << 32 | a2)


def _failed(data: bytes) -> Failure:
    """A failed run (er:<id>, see lua/record.lua)."""
    attempt, a1, a2, n = _failed_run(data)
    start = _FAILED_RUN + n
    worker = data[_FAILED_RUN:start].decode()
    return msgspec.structs.replace(
        _failure(data[start:]), attempt=attempt, at_ms=a1 << 32 | a2, worker=worker or None
    )


def _failed_run_of(data: bytes) -> Failure:
    """The same, for readers: one that cannot be read is told as such, and the job is listed all the same."""
    try:
        return _failed(data)
    except _BROKEN:
        return verdicts.unreadable(attempt=0, worker=None, now_ms=0)


def queue_record(
    queue: QueueName, flat: Sequence[bytes], keyed: Sequence[bytes] = ()
) -> QueueRecord:
    """What is stored about a queue."""
    m = {k.decode(): v.decode() for k, v in zip(flat[::2], flat[1::2], strict=True)}
    per_key = {k.decode(): v for k, v in zip(keyed[::2], keyed[1::2], strict=True)}
    changed = m.get("changed")
    default = RetentionData()
    kept = (
        default
        if "keep4" not in m
        else RetentionData(
            completed_ms=_number(m["keep4"]),
            failed_ms=_number(m["keep5"]),
            cancelled_ms=_number(m["keep6"]),
            count=_number(m["count"]),
        )
    )
    return QueueRecord(
        queue=queue,
        mode=m.get("mode"),  # type: ignore[arg-type]
        limits=LimitsRecord(
            declared=_limits(m.get("declared", "{}")),
            version=int(m.get("version", 0)),
            changed=None if changed is None else _limits(changed),
            keys={
                key[1:]: _limits(text.decode())
                for key, text in per_key.items()
                if key.startswith("\n")
            },
        ),
        partitions=int(m.get("partitions", 1)),
        retention=kept,
        dead_letters=m["dead"].partition("\n")[0] and queue_of(m["dead"].partition("\n")[0]).queue
        if "dead" in m
        else None,
        max_stalls=msgspec.json.decode(m.get("max_stalls", "{}"), type=dict[str, int]),
        event_meta=tuple(name for name in m.get("event_meta", "").split("\n") if name),
        paused=m.get("paused") == "1",
    )


def _limits(text: str) -> Limits:
    return msgspec.json.decode(text, type=Limits)


def _number(text: str) -> int | None:
    return int(text) if text else None
