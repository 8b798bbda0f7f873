"""Checks jobs that a store gets in several steps, before the first step: all of them or none.

A store checks the jobs of one step and one queue together. If a call has more jobs than one step,
or jobs of several queues, a job that is refused later would leave others stored.
"""

from __future__ import annotations

from collections.abc import Sequence

from jobq.core import refusals
from jobq.core.limits import highest_cost
from jobq.core.queues import QueueRecord
from jobq.core.records import JobSpec, Mode, QueueName
from jobq.errors import InvalidJob
from jobq.stores.base import Store


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
    check_specs(specs, records)


def check_specs(specs: Sequence[JobSpec], records: dict[QueueName, QueueRecord]) -> None:
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
