"""Jobs in requests and replies: bodies, extras, leases, records, and results of puts.

lua/fields.lua has the layouts (EXTRA, RECORD).
"""

from __future__ import annotations

from collections.abc import Container, Sequence
from operator import attrgetter
from struct import Struct
from typing import Any, NamedTuple, NoReturn

import msgspec
from msgspec.structs import astuple

from jobq.core.records import refusals
from jobq.core.records.event_log import STATE_CODES, STATES
from jobq.core.records.jobs import (
    Deferred,
    Failure,
    Input,
    JobKey,
    JobRecord,
    JobSpec,
    Lease,
    PutResult,
    QueueName,
    Steps,
)
from jobq.core.records.states import State
from jobq.core.rules import outcomes
from jobq.core.rules.limits import queue_full
from jobq.core.rules.new_jobs import Checked
from jobq.core.rules.options import FIELDS
from jobq.core.rules.outcomes import legible
from jobq.stores.valkey.calls import Refused
from jobq.stores.valkey.keys import numbers, queue_of, texts
from jobq.stores.valkey.packing import encode
from jobq.stores.valkey.stored_job import (
    BROKEN,
    DEFAULTS,
    NO_RUN,
    RUN_FLAGS,
    has_given_id,
    record_fields,
    run_fields,
)

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
        return outcomes.unreadable_failure(attempt=0, worker=None, now_ms=0)


# The producer's part of a job's record: its body. RECORD in lua/fields.lua has the layout.

_FLAGS = numbers("FLAG")
_GIVEN_ID, _MORE = _FLAGS["given_id"], _FLAGS["more"]
_AT_PUT, _AT_END = _FLAGS["at_put"], _FLAGS["at_end"]
_NONE = numbers("PACK")["none_byte"].to_bytes()
_short = Struct(">BB").pack  # flags, length of name and key
_long = Struct(">BxHH").pack  # flags, and both lengths
_length = Struct(">xI").pack  # a filler that lua/uniform.lua replaces, and the payload's length
_PLAIN = JobSpec(queue=QueueName("", ""), id="", name="", payload=b"")
_DEFAULTS = astuple(_PLAIN)[4:]
"""The values behind queue, id, name and payload of a spec that sets none of them."""
_option_values = attrgetter(
    *(f for f in _PLAIN.__struct_fields__[4:] if f not in ("key", "given_id"))
)
_NO_OPTIONS = _option_values(_PLAIN)

_MAX_BYTES = 16_000_000
"""Payload bytes per call. The server does nothing else meanwhile, and refuses far larger calls."""
_heads: dict[str, bytes | None] = {}
"""Task name → head (see `_head`)."""
_MAX_HEADS = 10_000


def name_and_key(name: str, key: str | None) -> bytes:
    """Name and key as MessagePack, as records and events hold them."""
    return encode(name) + (_NONE if key is None else encode(key))


def body_of(spec: JobSpec, channel: str | None) -> tuple[bytes, bool]:
    """The body of a job, and whether the job must be put singly: it has a lock or edges.

    The end of the job is published to `channel`, unless that is None.
    """
    payload = spec.payload
    plain = channel is None and _option_values(spec) == _NO_OPTIONS
    if plain and spec.key is None and not spec.given_id and (head := _head(spec.name)) is not None:
        return head + payload, False
    flags = _GIVEN_ID if spec.given_id else 0
    nk = name_and_key(spec.name, spec.key)
    if plain and len(nk) < 256:
        return _short(flags, len(nk)) + nk + payload, False
    options, more = _options(spec, channel)
    packed = encode(options) if options else b""
    body = _long(flags | more | _MORE, len(nk), len(packed)) + nk + packed + payload
    return body, spec.unique is not None or bool(spec.after)


Uniform = tuple[int, bytes, int, bytes, bytes]
"""The arguments of `put_uniform` (lua/uniform.lua) after `now`."""


def uniform(specs: Sequence[JobSpec]) -> Uniform | None:
    """The arguments of `put_uniform`, if these jobs differ in id and payload only; else None."""
    queue, name, width = specs[0].queue, specs[0].name, len(specs[0].id)
    head = _head(name)
    if head is None:
        return None
    ids: list[str] = []
    parts: list[bytes] = []
    for row in map(astuple, specs):
        id, payload = row[1], row[3]
        if (
            row[4:] != _DEFAULTS
            or row[2] != name
            or len(id) != width
            or (row[0] is not queue and row[0] != queue)
        ):
            return None
        ids.append(id)
        parts += (_length(len(payload)), payload)
    all_ids = "".join(ids).encode()
    # The function splits ids by bytes, and puts no id twice.
    if len(all_ids) != width * len(ids) or len(set(ids)) != len(ids):
        return None
    return len(ids), head, width, all_ids, b"".join(parts)


class Prepared(Checked):
    """Specs with their arguments for `put_uniform`, and the results if all are new and waiting."""

    __slots__ = ("results", "too_large", "uniform")

    def __init__(
        self, specs: Sequence[JobSpec], expected: Container[tuple[QueueName, str]] = ()
    ) -> None:
        """`expected`: jobs whose ends are published to the handle. `put_uniform` cannot do that."""
        super().__init__(specs)
        self.uniform = (
            None
            if expected and any((spec.queue, spec.id) in expected for spec in specs)
            else uniform(specs)
        )
        self.results = [PutResult(id=spec.id, life=0, state=State.WAITING) for spec in specs]
        self.too_large = too_large(specs)


def too_large(specs: Sequence[JobSpec]) -> bool:
    """Whether these are several jobs that are too large for one call together."""
    return len(specs) > 1 and sum([len(spec.payload) for spec in specs]) > _MAX_BYTES


def _head(name: str) -> bytes | None:
    """What the bodies of a task's jobs begin with if they have no key and no options.

    None if the name is too long for the short form.
    """
    if name not in _heads:
        if len(_heads) >= _MAX_HEADS:
            _heads.clear()
        nk = name_and_key(name, None)
        _heads[name] = _short(0, len(nk)) + nk if len(nk) < 256 else None
    return _heads[name]


_ORDER: list[tuple[str, ...]] = [(), ("put",), ("start",), ("end",)]
"""The order of the options in a record: by the first time that the server looks at them."""
_OPTIONS = [
    (each.field, each.recorded, each.default, sum(_FLAGS[f"at_{when}"] for when in each.when))
    for each in sorted(FIELDS, key=lambda option: _ORDER.index(option.when[:1]))
    if each.recorded is not None
]
"""Field of a spec, its name in the record, its default, and when the server must look at it."""


def _options(spec: JobSpec, channel: str | None) -> tuple[dict[str, Any], int]:
    """The options that differ from their defaults, and flags: when the server must look at them.

    `StoredOptions` in stored_job.py reads what this writes.
    """
    options: dict[str, Any] = {}
    flags = _AT_PUT if spec.after else 0
    for field, name, default, when in _OPTIONS:
        value = getattr(spec, field)
        if value != default:
            options[name], flags = value, flags | when
    if spec.at_ms is not None:
        options["at"], flags = spec.at_ms, flags | _AT_PUT
    elif spec.delay_ms:
        options["delay"], flags = spec.delay_ms, flags | _AT_PUT
    if channel is not None:
        options["chan"], flags = channel, flags | _AT_END
    if spec.unique is not None:
        options["lock"], flags = spec.unique.lock, flags | _AT_PUT | _AT_END
        if spec.unique.mode != "simple":
            options["lock_mode"] = spec.unique.mode
        if spec.unique.ttl_ms is not None:
            options["lock_ttl"] = spec.unique.ttl_ms
    return options, flags


# Jobs in replies: leases, records, and completed jobs that the server published.

_CANCEL, _LAST_CHANCE = RUN_FLAGS["cancel"], RUN_FLAGS["last_chance"]
_ACTIVE, _COMPLETED = STATE_CODES[State.ACTIVE], STATE_CODES[State.COMPLETED]
_CANCELLED = STATE_CODES[State.CANCELLED]
PUBLISHED = b"\xff"
"""The first byte of a published job; PUBLISHED in lua/fields.lua has the layout."""
_published = Struct(">xHIHHIHI").unpack_from  # PUBLISHED.head: finished, and five lengths
_PUBLISHED_SIZE = 21


def leases(
    queue: QueueName, granted: Sequence[Any], lease_ms: int, suffix: str = ""
) -> tuple[Lease, ...]:
    """The leases that a claim was granted (see lua/settle.lua). `suffix` ends their tokens."""
    expires, stem, first_runs, others, retries = granted
    default = int(retries) if retries else None
    until, token = int(expires), stem.decode()
    started = until - lease_ms
    by_index = {
        others[n]: _lease(queue, others[n + 1 : n + 5], until, suffix, default)
        for n in range(0, len(others), 5)
    }
    pairs = zip(first_runs[::2], first_runs[1::2], strict=True)
    return tuple(
        [
            by_index.get(n)
            or _first_run(queue, *next(pairs), f"{token}{n}{suffix}", started, until, default)
            for n in range(len(by_index) + len(first_runs) // 2)
        ]
    )


def _first_run(
    queue: QueueName,
    id: bytes,
    rec: bytes,
    token: str,
    started: int,
    expires: int,
    default_retries: int | None,
) -> Lease:
    """The lease of a job's first run. The record says everything about the job."""
    try:
        created, due, life, name, key, options, payload = record_fields(rec)
    except BROKEN:
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
        # begin scripts/options.py: lease
        retry=options.retry,
        timeout_ms=options.timeout_ms,
        meta=options.meta,
        # end scripts/options.py
        due_ms=due or created,
        default_retries=default_retries,
    )


def _lease(
    queue: QueueName, parts: Sequence[Any], expires: int, suffix: str, default_retries: int | None
) -> Lease:
    id, rec, packed_run, flat = parts
    run = run_fields(packed_run)
    try:
        created, due, life, name, key, options, payload = record_fields(rec)
        more = extras(flat)
    except BROKEN:
        return _unreadable(queue, id, rec, run.token + suffix, run.attempt, run.started, expires)
    return Lease(
        queue=queue,
        id=id.decode(),
        token=run.token + suffix,
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
        # begin scripts/options.py: lease
        retry=options.retry,
        timeout_ms=options.timeout_ms,
        meta=options.meta,
        # end scripts/options.py
        saved=more.saved,
        cancel_asked=run.flags & _CANCEL > 0,
        last_chance=run.flags & _LAST_CHANCE > 0,
        unknown_ms=more.unknown_ms,
        unfit_ms=None if more.deferred is None else more.deferred.unfit_ms or None,
        inputs=more.inputs,
        signals=more.signals,
        steps=more.steps,
        due_ms=run.due or due or created,
        default_retries=default_retries,
    )


def _unreadable(
    queue: QueueName, id: bytes, rec: bytes, token: str, attempt: int, started: int, expires: int
) -> Lease:
    """The lease of a job whose record cannot be read: enough for the worker to fail it."""
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


def record(queue: QueueName, view: Sequence[Any], *, whole: bool = False) -> JobRecord:
    """A job as J.view in lua/reads.lua returns it.

    `whole`: the reply has all failed runs that are kept, not only the last one, and the steps.
    """
    id, state, rec, packed_run, flat, finished, reason, result, failed = view
    damaged = False
    try:
        fields, more, run = record_fields(rec), extras(flat), run_fields(packed_run)
    except BROKEN:  # the job is listed, and its payload is what was stored
        damaged = True
        fields, more, run = (0, 0, 0, "?", None, DEFAULTS, rec), NO_EXTRAS, NO_RUN
    created, due, life, name, key, options, payload = fields
    # What broken_job in lua/record.lua made of it. A restored job may have been created at 0.
    damaged = damaged or (not created and name == "?")
    failure = more.failure
    errors: tuple[Failure, ...] = ()
    if failed:
        errors = tuple([failed_run(entry) for entry in failed])
        failure = errors[-1] if more.failed_last else failure
    found = JobRecord(
        queue=queue,
        id=id.decode(errors="replace"),
        name=name,
        state=STATES[state],
        payload=payload,
        codec=options.codec,
        priority=options.priority,
        key=key,
        life=life,
        attempt=run.attempt,
        failures=run.failures,
        stalls=run.stalls,
        created_ms=created,
        due_ms=None if STATES[state] is State.BLOCKED else run.due or due or created,
        started_ms=run.started or None,
        finished_ms=int(finished) if finished else None,
        worker=run.worker or None,
        result=result[1:] if result else None,
        failure=failure,
        errors=errors if whole else (),
        steps=more.steps if whole else (),
        reason=reason.decode(errors="replace") if state == _CANCELLED else None,
        progress=more.progress,
        saved=more.saved,
        cancel_asked=run.flags & _CANCEL > 0 and state == _ACTIVE,
        schedule=options.schedule,
        origin=options.origin,
        meta=options.meta,
        options=options.as_call_options(),
        parents=more.parents,
        children=more.children,
        given_id=has_given_id(rec),
        deferred=more.deferred,
    )
    return legible(found, damaged=damaged)


def published(data: bytes) -> tuple[QueueName, JobRecord]:
    """A completed job from a message on the handle's channel."""
    t1, t2, *sizes = _published(data)
    parts, start = [], _PUBLISHED_SIZE
    for size in sizes:
        parts.append(data[start : start + size])
        start += size
    prefix, id, rec, run, result = parts
    queue = queue_of(prefix.decode())
    return queue, record(queue, (id, _COMPLETED, rec, run, b"", t1 << 32 | t2, b"", result, ()))


# What the functions that put jobs reply: results, and refusals in words.

_FULL = -1  # instead of a state: the queue is full and the job was refused


def put_result(queue: QueueName, answer: list[Any]) -> PutResult:
    """The result for a job that is not simply new and waiting (see J.put_one in lua/put.lua)."""
    _, id, life, state, *found = answer
    if state == _FULL:
        return PutResult(id=id.decode(), life=0, state=None, full=found[0])
    if not found:
        return PutResult(id=id.decode(), life=life, state=STATES[state])
    known = record(queue, found[0]) if found[0] else None
    return PutResult(id=id.decode(), life=life, state=STATES[state], duplicate=True, found=known)


def refuse(refused: Refused, specs: Sequence[JobSpec]) -> NoReturn:
    """Raise the exception that says why these jobs were refused."""
    queue = specs[0].queue.queue
    if refused.word == "FULL":
        raise queue_full(queue, int(refused.rest[0]), refused=len(specs))
    if refused.word == "COST":
        capacity = int(float(refused.rest[0]))
        spec = next(s for s in specs if s.cost > capacity)
        raise refusals.too_costly(spec, capacity)
    spec = specs[int(refused.rest[1]) - 1]
    raise refusals.wrong_mode("keyed" if refused.rest[0] == "keyed" else "plain", spec)
