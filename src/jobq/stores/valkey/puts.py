"""`put`: jobs go to the function that accepts them, grouped by queue or partition."""

from __future__ import annotations

import os
from collections.abc import Sequence
from struct import Struct

from jobq.core.records.jobs import Failure, JobKey, JobRecord, JobSpec, PutResult
from jobq.core.rules import copies
from jobq.core.rules.flows import check_locks
from jobq.core.rules.limits import depend_on_each_other
from jobq.core.rules.new_jobs import check_restored, check_specs
from jobq.core.rules.outcomes import error_text
from jobq.errors import QueueFull
from jobq.stores.valkey import packing
from jobq.stores.valkey.calls import Calls, PartitionsChanged, Refused
from jobq.stores.valkey.connection import Argument
from jobq.stores.valkey.flows import Edges, Flows
from jobq.stores.valkey.jobs import Prepared, body_of, put_result, refuse
from jobq.stores.valkey.library import function
from jobq.stores.valkey.listener import Listener
from jobq.stores.valkey.mail import Mail
from jobq.stores.valkey.packing import encode
from jobq.stores.valkey.partitions import Partitions

_PUT, _PUT_UNIFORM = function("put"), function("put_uniform")
_BATCH = 2000
"""Jobs per call: the server does nothing else meanwhile, and 2,000 take it about 6 ms."""


class Puts:
    """Accepts jobs."""

    def __init__(
        self,
        calls: Calls,
        partitions: Partitions,
        mail: Mail,
        edges: Edges,
        flows: Flows,
        listener: Listener,
    ) -> None:
        self._calls = calls
        self._partitions = partitions
        self._mail = mail
        self._edges = edges
        self._flows = flows
        self._channel = listener.channel
        self._expected = listener.expected

    def prepare(self, specs: Sequence[JobSpec]) -> Sequence[JobSpec]:
        """See Pipelined."""
        return Prepared(check_specs(specs), self._expected)

    async def put(
        self, specs: Sequence[JobSpec], *, flow: str | None = None, last: bool = True
    ) -> list[PutResult]:
        """See HotStore."""
        if flow is not None:
            return await self._flows.put(specs, flow, last)
        specs = check_specs(specs)
        if not specs:
            return []
        try:
            return await self._put(specs)
        except PartitionsChanged:
            self._partitions.forget_all()
            return await self._put(specs)

    async def _put(self, specs: Sequence[JobSpec]) -> list[PutResult]:
        queue, partitions = specs[0].queue, self._partitions
        specs = specs if isinstance(specs, Prepared) else Prepared(specs, self._expected)
        if (
            specs.uniform is not None
            and len(specs) <= _BATCH
            and partitions.known.get(queue) == 1
            and queue in partitions.registered
        ):
            return await self._put_at(partitions.space.prefix(queue), specs, {})
        where = await self._edges.check(specs) if any(spec.after for spec in specs) else {}
        if where and depend_on_each_other(specs):  # the rules of a flow apply
            check_locks(specs)
        groups = await self._by_prefix(specs)
        if len(groups) == 1 and len(specs) <= _BATCH and not (where and specs.too_large):
            ((prefix, _),) = groups.items()
            return await self._put_at(prefix, specs, where)
        own = {JobKey(spec.queue, spec.id) for spec in specs} if where else set()
        if any(edge.job in own for spec in specs for edge in spec.after):
            # These jobs wait for each other and need several calls. Put one call at a time, a job
            # would not find children that a later call puts. So they go in as a flow.
            return await self._put_as_flow(specs)
        answers: list[PutResult | None] = [None] * len(specs)
        for prefix, positions in groups.items():
            for start in range(0, len(positions), _BATCH):
                part = positions[start : start + _BATCH]
                results = await self._put_part(prefix, [specs[n] for n in part], where)
                for n, answer in zip(part, results, strict=True):
                    answers[n] = answer
        return answers  # type: ignore[return-value]

    async def _put_as_flow(self, specs: Sequence[JobSpec]) -> list[PutResult]:
        try:
            return await self._flows.put(specs, f"put-{os.urandom(9).hex()}", True)
        except QueueFull as full:
            return [
                PutResult(id=spec.id, life=0, state=None, full=full.max_waiting) for spec in specs
            ]

    async def _by_prefix(self, specs: Sequence[JobSpec]) -> dict[str, list[int]]:
        partitions = self._partitions
        groups: dict[str, list[int]] = {}
        for n, spec in enumerate(specs):
            if spec.queue not in partitions.registered:
                await partitions.register(spec.queue)
            if spec.queue not in partitions.known:
                await partitions.count(spec.queue)
            groups.setdefault(partitions.prefix_of(spec.queue, spec.id, spec.key), []).append(n)
        return groups

    async def _put_at(
        self, prefix: str, specs: Prepared, where: dict[JobKey, str]
    ) -> list[PutResult]:
        if specs.too_large:
            middle = len(specs) // 2
            first = await self._put_part(prefix, specs[:middle], where)
            return first + await self._put_part(prefix, specs[middle:], where)
        calls, queue = self._calls, specs[0].queue
        if specs.uniform is None:
            name, args = _PUT, self._arguments(specs, where)
        else:
            name, args = _PUT_UNIFORM, specs.uniform
        try:
            reply = await calls.fcall_list(name, prefix, (calls.now(), *args), confirmed=True)
        except Refused as e:
            refuse(e, specs)
        to_wake, messages, due_in, answers, had_no_mode = reply
        if had_no_mode:
            await self._partitions.register(queue, again=True)
        if to_wake or messages or due_in >= 0:
            await self._mail.after(queue, prefix, to_wake=to_wake, messages=messages, due_in=due_in)
        for answer in answers:
            specs.results[answer[0] - 1] = put_result(queue, answer)
        return specs.results

    async def _put_part(
        self, prefix: str, specs: Sequence[JobSpec], where: dict[JobKey, str]
    ) -> list[PutResult]:
        return await self._put_at(prefix, Prepared(specs, self._expected), where)

    def _arguments(
        self, specs: Sequence[JobSpec], where: dict[JobKey, str]
    ) -> tuple[Argument, ...]:
        """The arguments of `put` for jobs of any kind (see lua/put.lua)."""
        plain = keyed = 0
        cost, look = 1, False
        jobs: list[Argument] = []
        tied: list[Argument] = []
        channel, expected = self._channel, self._expected
        for n, spec in enumerate(specs, 1):
            body, singly = body_of(
                spec, channel if expected and (spec.queue, spec.id) in expected else None
            )
            jobs += (spec.id, body)
            if singly:
                look = True
                if spec.after:
                    tied += (n, packing.encode_edges(spec.after, where.__getitem__))
            if spec.key is None:
                plain = plain or n
            else:
                keyed = keyed or n
            if spec.cost > cost:
                cost = spec.cost
        look = look or len({spec.id for spec in specs}) != len(specs)
        return (
            len(specs),
            plain,
            keyed,
            cost,
            2 if tied and depend_on_each_other(specs) else int(look),
            *jobs,
            *tied,
        )


_RESTORE_BATCH = 500
"""Jobs per call: the server does nothing else meanwhile."""
_short = Struct(">IHI").pack  # FAILED_RUN.short: attempt, and a time of 6 bytes as 2 and 4
_worker_length = Struct(">H").pack
_length = Struct(">I").pack


class Restores:
    """Stores failed jobs of another store."""

    def __init__(self, calls: Calls, partitions: Partitions) -> None:
        self._calls = calls
        self._partitions = partitions

    async def restore(self, records: Sequence[JobRecord]) -> list[bool]:
        """See OperatorStore."""
        checked = check_restored(records)
        try:
            return await self._by_partition(checked)
        except PartitionsChanged:
            self._partitions.forget_all()
            return await self._by_partition(checked)

    async def _by_partition(self, checked: Sequence[tuple[JobRecord, JobSpec]]) -> list[bool]:
        results = [False] * len(checked)
        groups: dict[str, list[int]] = {}
        for n, (_, record) in enumerate(checked):
            await self._partitions.register(record.queue)
            await self._partitions.count(record.queue)
            prefix = self._partitions.prefix_of(record.queue, record.id, record.key)
            groups.setdefault(prefix, []).append(n)
        for prefix, positions in groups.items():
            for start in range(0, len(positions), _RESTORE_BATCH):
                part = positions[start : start + _RESTORE_BATCH]
                letters = await self._restore(prefix, [checked[n] for n in part])
                for n, letter in zip(part, letters, strict=True):
                    results[n] = letter == ord("d")
        return results

    async def _restore(self, prefix: str, checked: Sequence[tuple[JobRecord, JobSpec]]) -> bytes:
        specs = [spec for _, spec in checked]
        plain = next((n for n, spec in enumerate(specs, 1) if spec.key is None), 0)
        keyed = next((n for n, spec in enumerate(specs, 1) if spec.key is not None), 0)
        args: list[Argument] = [self._calls.now(), len(checked), plain, keyed]
        for record, spec in checked:
            args += _arguments(record, spec)
        try:
            letters, had_no_mode = await self._calls.fcall("restore", prefix, *args, confirmed=True)
        except Refused as e:
            refuse(e, specs)
        if had_no_mode:
            await self._partitions.register(specs[0].queue, again=True)
        return bytes(letters)


def _arguments(record: JobRecord, spec: JobSpec) -> tuple[Argument, ...]:
    failure = record.failure
    assert failure is not None  # check_restored
    of_a_run = bool(record.errors) and record.errors[-1] == failure
    was = {
        "created": record.created_ms,
        "due": record.due_ms or record.created_ms,
        "started": record.started_ms or 0,
        "attempt": record.attempt,
        "failures": record.failures,
        "stalls": record.stalls,
        "stalls_before": copies.stalls_before(record),
        "worker": record.worker or "",
        "reason": failure.reason,
        "error": error_text(failure),
    }
    if failure.fingerprint is not None:
        was["fingerprint"] = failure.fingerprint
    runs = b"".join(_failed_run(each) for each in record.errors)
    kept = b"" if of_a_run else _head(failure)
    steps = b"".join(_part(name.encode()) + _part(data) for name, data in record.steps)
    return spec.id, body_of(spec, None)[0], encode(was), kept, runs, steps


def _head(failure: Failure) -> bytes:
    at = failure.at_ms
    return _short(failure.attempt, at >> 32, at & 0xFFFFFFFF) + encode(failure)


def _failed_run(failure: Failure) -> bytes:
    at, worker = failure.at_ms, (failure.worker or "").encode()
    head = _short(failure.attempt, at >> 32, at & 0xFFFFFFFF)
    return _part(head + _worker_length(len(worker)) + worker + encode(failure))


def _part(data: bytes) -> bytes:
    """A part of a text that lua/restore.lua cuts into parts."""
    return _length(len(data)) + data
