"""Edges between jobs: where the jobs are that others wait for."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from jobq.core import refusals
from jobq.core.records import JobKey, JobSpec
from jobq.stores.valkey.calls import Calls
from jobq.stores.valkey.partitions import Partitions

_BATCH = 500
"""Jobs that one call looks up: the server does nothing else meanwhile."""


class Edges:
    """Finds the jobs that edges name."""

    def __init__(self, calls: Calls, partitions: Partitions) -> None:
        self._calls = calls
        self._partitions = partitions

    async def check(self, specs: Sequence[JobSpec]) -> dict[JobKey, str]:
        """The prefixes of the jobs that these wait for.

        InvalidJob if one of them does not exist.
        """
        waited = {edge.job for spec in specs for edge in spec.after}
        if not waited:
            return {}
        for spec in specs:
            await self._partitions.count(spec.queue)
        own = {
            JobKey(spec.queue, spec.id): self._partitions.prefix_of(spec.queue, spec.id, spec.key)
            for spec in specs
        }
        known = own | await self.locate(waited - own.keys())
        for spec in specs:
            for edge in spec.after:
                check_edge(spec.id, spec.queue.tenant, edge.job, known)
        return known

    async def locate(self, jobs: Iterable[JobKey]) -> dict[JobKey, str]:
        """The prefixes of jobs. Jobs that do not exist are left out."""
        listed = list(jobs)
        found: dict[JobKey, str] = {}
        for prefix, positions in (await self._partitions.prefixes_of(listed)).items():
            for start in range(0, len(positions), _BATCH):
                some = positions[start : start + _BATCH]
                ids = (listed[n].id for n in some)
                known = await self._calls.fcall("known", prefix, self._calls.now(), *ids)
                found |= {listed[n]: prefix for n, yes in zip(some, known, strict=True) if yes}
        return found


def check_edge(id: str, tenant: str, child: JobKey, known: Container[JobKey]) -> None:
    """Raise InvalidJob unless the child is known and of the job's tenant.

    A job of another tenant is refused with the same words as a job that does not exist.
    """
    if child not in known or child.queue.tenant != tenant:
        raise refusals.unknown_child(id, child)
