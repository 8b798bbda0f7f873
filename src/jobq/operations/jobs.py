"""Commands on jobs that are named by their ids."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jobq.core.records.commands import AnyCommand
from jobq.core.records.criteria import Criteria
from jobq.core.records.jobs import JobKey, JobRecord, QueueName
from jobq.core.records.states import State
from jobq.core.values import checks
from jobq.errors import JobNotFound
from jobq.operations.bulk import BulkChange, alter_as_read
from jobq.operations.listing import no_such_job
from jobq.stores.base import ReadStore, Store

CHUNK = 1_000
"""Jobs per call: enough that the cost of a call does not matter, few enough that other writers do
not wait long."""


async def apply(store: Store, command: AnyCommand) -> bool:
    """Give one command. False if it does not apply to the job now. Raises JobNotFound."""
    (reply,) = await store.alter([command])
    if reply == "missing":
        raise no_such_job(command.job)
    return reply == "done"


async def known(store: ReadStore, queue: QueueName, ids: Sequence[str]) -> list[JobRecord]:
    """The jobs of these ids. JobNotFound names the first unknown one."""
    wanted = list(dict.fromkeys(checks.check_id(id) for id in ids))
    found: list[JobRecord] = []
    for start in range(0, len(wanted), CHUNK):
        keys = [JobKey(queue, id) for id in wanted[start : start + CHUNK]]
        for key, record in zip(keys, await store.get(keys), strict=True):
            if record is None:
                raise JobNotFound(
                    f"there is no job {key.id!r} in queue {queue.queue!r}; no job was changed"
                )
            found.append(record)
    return found


async def change(
    store: Store,
    kind: str,
    records: Sequence[JobRecord],
    actor: str | None,
    advance: Callable[[int], None] = lambda number: None,
) -> int:
    """Give one command for each job, in bounded calls. Returns to how many it applied.

    `advance` is told how many jobs each call was about."""
    total = 0
    for start in range(0, len(records), CHUNK):
        part = records[start : start + CHUNK]
        total += (await alter_as_read(store, kind, part, actor)).count("done")
        advance(len(part))
    return total


async def rerun_failed(
    store: Store,
    queue: QueueName,
    ids: Sequence[str],
    name: str | None,
    actor: str | None,
    now_ms: int,
) -> int:
    """Run failed jobs again: those of these ids, or all, or all of the task `name`.

    An unknown id raises JobNotFound before any job changes."""
    wanted = Criteria(states=(State.FAILED,), name=name)
    if ids:
        failed = [
            record
            for record in await known(store, queue, ids)
            if record.state is State.FAILED and wanted.verdict(record) == "match"
        ]
        return await change(store, "rerun", failed, actor)
    every = BulkChange(store, queue, wanted, "rerun", actor=actor, now_ms=now_ms)
    return (await every.run()).changed
