"""Which queues a request names: they are locked first, all at once and in a fixed order.

Two requests that lock queues, sleepers or jobs in different orders could wait for each other. The
server finds that out after a second and makes one of them start over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jobq.core.records.commands import AnyCommand
from jobq.core.records.jobs import AnyOutcome, Claim, JobSpec, QueueName
from jobq.core.records.queues import Fire
from jobq.stores.postgres.tx import PostgresTx
from jobq.stores.relational import alter, put, schedules, settle, submission


def run_locked(
    tx: PostgresTx, names: tuple[QueueName, ...], work: Callable[..., Any], *args: Any
) -> Any:
    """Lock these queues, then do the work of a request."""
    tx.lock_queues(names)
    return work(tx, *args)


def queues_of(work: Callable[..., Any], args: tuple[Any, ...]) -> tuple[QueueName, ...]:
    """The queues that a request of the shared logic names, each once."""
    named = _NAMED.get(work)
    return () if named is None else tuple(dict.fromkeys(named(*args)))


def _of_exchange(
    outcomes: Sequence[AnyOutcome], worker: str, call: str, wanted: Claim | None, *_: object
) -> Iterable[QueueName]:
    for outcome in outcomes:
        yield outcome.queue
    if wanted is not None:
        yield from wanted.queues


def _of_put(specs: Sequence[JobSpec], *_: object) -> Iterable[QueueName]:
    for spec in specs:
        yield spec.queue
        for edge in spec.after:
            yield edge.job.queue


def _of_alter(commands: Sequence[AnyCommand]) -> Iterable[QueueName]:
    return (command.job.queue for command in commands)


def _of_fire(fires: Sequence[Fire]) -> Iterable[QueueName]:
    return (each.queue for each in fires)


_NAMED: dict[Callable[..., Any], Callable[..., Iterable[QueueName]]] = {
    settle.exchange: _of_exchange,
    put.put: _of_put,
    submission.put_flow: _of_put,
    alter.alter: _of_alter,
    schedules.fire: _of_fire,
}
