"""Checks of what workers and operators send: our own client has made them already, others may not
have. New jobs are checked by `core.rules.new_jobs`, as they are everywhere, except whether they
fit their queue.
"""

from __future__ import annotations

from collections.abc import Sequence

from jobq.core.records import refusals
from jobq.core.records.jobs import AnyOutcome, JobSpec, Mode, QueueName
from jobq.core.records.queues import QueueRecord
from jobq.core.records.workers import MAX_CONCURRENCY, WorkerRecord
from jobq.core.rules import outcomes
from jobq.core.rules.limits import highest_cost
from jobq.core.rules.new_jobs import check_queue
from jobq.core.values.checks import (
    MAX_COUNT,
    MAX_EPOCH_MS,
    MAX_MS,
    check_int,
    check_short_name,
)
from jobq.errors import InvalidJob
from jobq.stores.base import Store

# Checks jobs that a store gets in several steps, before the first step: all of them or none.
#
# A store checks the jobs of one step and one queue together. If a call has more jobs than one step,
# or jobs of several queues, a job that is refused later would leave others stored.


async def check_parts(store: Store, specs: Sequence[JobSpec], *, steps: int) -> None:
    """Raise what the store would raise for one of the jobs, which come in this many steps.

    Reads the queues of their tenant, if there is more than one step or queue.
    """
    names = {spec.queue for spec in specs}
    if steps == 1 and len(names) == 1:
        return
    if steps > 1 and any(spec.after for spec in specs):
        raise InvalidJob(
            f"{len(specs):,} jobs do not fit into one step, and some of them wait for others: "
            "submit them as a flow"
        )
    records = {
        record.queue: record
        for tenant in {name.tenant for name in names}
        for record in await store.queues(tenant)
        if record.queue in names
    }
    check_fits_queues(specs, records)


def check_fits_queues(specs: Sequence[JobSpec], records: dict[QueueName, QueueRecord]) -> None:
    """ConfigError or InvalidJob if a job does not fit its queue. A new queue has no record yet."""
    modes: dict[QueueName, Mode | None] = {name: each.mode for name, each in records.items()}
    costs = {name: highest_cost(each.limits.effective) for name, each in records.items()}
    for spec in specs:
        mode = modes.get(spec.queue)
        if mode is None:  # the first job of a queue decides
            mode = modes[spec.queue] = "plain" if spec.key is None else "keyed"
        if (spec.key is not None) != (mode == "keyed"):
            raise refusals.wrong_mode(mode, spec)
        most = costs.get(spec.queue)
        if most is not None and spec.cost > most:
            raise refusals.too_costly(spec, most)


_MAX_WORD = 512
"""Characters of the name of a worker, a call, a reader or a lock: ids with a prefix."""
_MAX_HOST = 255
"""Characters of a host's name, as in DNS."""
_MAX_QUEUES = 10_000
"""Queues of one worker. Each heartbeat names all of them."""
MAX_TTL_MS = 86_400_000
"""Milliseconds that a heartbeat or a leadership may last: a day. A caller that dies keeps the name
or the leadership as long, so a longer time would keep it for ever."""


def check_outcome(outcome: AnyOutcome) -> None:
    """InvalidJob names what is wrong with the end of a run."""
    check_queue(outcome.queue)
    outcomes.check_outcome(outcome)


def check_worker(worker: WorkerRecord) -> None:
    """InvalidJob names what is wrong with what a worker says about itself."""
    if worker.host:
        check_short_name(worker.host, "host", _MAX_HOST)
    if worker.incarnation:
        check_word(worker.incarnation, "incarnation")
    if len(worker.queues) > _MAX_QUEUES:
        raise InvalidJob(f"queues has {len(worker.queues):,} names, more than {_MAX_QUEUES:,}")
    for option, value, most in (
        ("pid", worker.pid, MAX_COUNT),
        ("concurrency", worker.concurrency, MAX_CONCURRENCY),
        ("active", worker.active, MAX_COUNT),
        ("started_ms", worker.started_ms, MAX_EPOCH_MS),
        ("seen_ms", worker.seen_ms, MAX_EPOCH_MS),
    ):
        check_int(value, option, high=most)


def check_ttl(ms: int) -> None:
    """InvalidJob unless a heartbeat or a leadership may last this long."""
    check_int(ms, "ttl_ms", low=1, high=MAX_TTL_MS)


def check_span(ms: int, option: str, *, least: int = 0) -> None:
    """InvalidJob unless this is a time that a store can add to another."""
    check_int(ms, option, low=least, high=MAX_MS)


def check_word(text: str, option: str) -> None:
    """InvalidJob unless this can be the name of a worker, a call, a reader or a lock."""
    check_short_name(text, option, _MAX_WORD)
