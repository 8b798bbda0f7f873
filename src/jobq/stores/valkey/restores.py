"""`restore`: stores failed jobs of another store."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct

from jobq.core import copies
from jobq.core.new_jobs import check_restored
from jobq.core.records import Failure, JobRecord, JobSpec
from jobq.core.verdicts import error_text
from jobq.stores.valkey.calls import Calls, PartitionsChanged, Refused
from jobq.stores.valkey.job_bodies import body_of
from jobq.stores.valkey.packing import encode
from jobq.stores.valkey.partitions import Partitions
from jobq.stores.valkey.put_results import refuse
from jobq.stores.valkey.wire import Argument

_BATCH = 500
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
            for start in range(0, len(positions), _BATCH):
                part = positions[start : start + _BATCH]
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
