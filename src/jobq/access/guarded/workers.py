"""Workers and the handle itself, for one principal."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from msgspec.structs import replace

from jobq.access.guarded.rules import Guard, bounded
from jobq.access.input_checks import check_ttl, check_word, check_worker
from jobq.core.records.jobs import QueueName
from jobq.core.records.workers import Beat, WorkerRecord, WorkerRequest


class GuardedWorkers(Guard):
    """PresenceStore and LifecycleStore."""

    async def beat(self, worker: WorkerRecord, *, ttl_ms: int, displace: bool = False) -> Beat:
        """Announce a worker."""
        self.check("beat")
        check_worker(worker)
        self._own_all(worker.queues)
        check_ttl(ttl_ms)
        name = self._named(worker.name)
        if name != worker.name:
            worker = replace(worker, name=name)
        if self.principal.tenant is not None:
            await self._tenants.admit_worker(self._store, self.principal.tenant, name)
        return await self._store.beat(worker, ttl_ms=ttl_ms, displace=displace)

    async def retire(self, worker: str, *, incarnation: str | None = None) -> None:
        """Remove a worker."""
        self.check("retire")
        if incarnation is not None:
            check_word(incarnation, "incarnation")
        await self._store.retire(self._named(worker), incarnation=incarnation)

    async def workers(self, queue: QueueName | None = None) -> list[WorkerRecord]:
        """Workers that serve a queue of the tenant, without their queues of other tenants."""
        self.check("workers")
        mine = self.principal.tenant
        if queue is not None:
            self._own(queue)
        found = await self._store.workers(queue)
        if mine is None:
            return found
        seen = [
            replace(each, queues=tuple(name for name in each.queues if name.tenant == mine))
            for each in found
        ]
        return [each for each in seen if each.queues]

    async def ask_worker(self, name: str, request: WorkerRequest) -> bool:
        """Leave a request for a worker of the tenant."""
        self.check("ask_worker")
        check_word(request, "request")
        return await self._store.ask_worker(self._named(name), request)

    async def lead(self, name: str, *, who: str, ttl_ms: int) -> bool:
        """Become or stay the leader of `name`, within the tenant."""
        self.check("lead")
        check_word(who, "who")
        check_ttl(ttl_ms)
        if self.principal.tenant is not None:
            self._tenants.admit_election(self.principal.tenant, name)
        return await self._store.lead(self._named(name), who=who, ttl_ms=ttl_ms)

    # ── the handle ────────────────────────────────────────────────────────────────────────────────

    async def migrate(self) -> None:
        """Nothing: the server has opened its store."""

    async def aclose(self) -> None:
        """Nothing: the server closes its store."""

    async def tick(self, *, limit: int = 500) -> int:
        """Do upkeep in all queues. Nothing for a caller of one tenant: the server does it."""
        self.check("tick")
        if self.principal.tenant is not None:
            return 0
        return await self._store.tick(limit=bounded(limit))

    async def __aenter__(self) -> Self:
        """Nothing: the server has opened its store."""
        return self

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Nothing: the server closes its store."""
