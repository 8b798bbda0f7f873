"""Workers of several tenants on one server: none of them sees or ends jobs of another."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from jobq.access.principal import Principal, Scope
from jobq.core.records.jobs import JobKey, JobRecord, JobSpec, QueueName
from jobq.errors import AccessDenied, InvalidJob, JobNotFound, Unauthenticated
from jobq.rpc.v1 import workers_pb2 as pb
from jobq.server.config import ServerSettings
from jobq.server.context import ServerContext
from jobq.server.host import Host
from jobq.server.workers import WorkerService
from jobq.stores import open_store
from jobq.stores.base import Store
from jobq.testing import FakeWorker
from jobq.testing.fake_worker import ref
from tests.waiting import nothing_happens


class Names:
    """Tokens are `tenant` or `tenant/scope`. A token in `expired` is refused."""

    def __init__(self) -> None:
        self.expired: set[str | None] = set()

    def principal(self, token: str | None) -> Principal:
        if token in self.expired:
            raise Unauthenticated("the token has expired")
        tenant, _, scope = (token or "").partition("/")
        scopes: frozenset[Scope] = frozenset({scope or "work"})  # type: ignore[arg-type]
        return Principal(subject=tenant, tenant=tenant, scopes=scopes)

    async def look_for_key(self) -> bool:
        """These tokens have no keys."""
        return False


@asynccontextmanager
async def serving(name: str) -> AsyncIterator[tuple[Store, str]]:
    async with open_store(f"memory://workers-tenants-{name}") as store:
        context = ServerContext(store, ServerSettings(grpc_port=0), authenticator=Names())
        async with Host(context, [WorkerService]) as host:
            yield store, f"127.0.0.1:{host.port}"


async def put(store: Store, tenant: str, id: str) -> None:
    queue = QueueName(tenant, "mail")
    await store.put([JobSpec(queue=queue, id=id, name="send", payload=b"[[],{}]")])


async def get(store: Store, tenant: str, id: str) -> JobRecord:
    (record,) = await store.get([JobKey(QueueName(tenant, "mail"), id)])
    assert record is not None
    return record


async def test_workers_of_two_tenants_may_have_one_name() -> None:
    async with (
        serving("names") as (store, address),
        FakeWorker(address, ["mail"], name="w1", token="acme") as acme,
        FakeWorker(address, ["mail"], name="w1", token="other") as other,
    ):
        await put(store, "acme", "a")
        job = await acme.job()
        await put(store, "other", "b")
        theirs = await other.job()
        assert (job.id, job.tenant, theirs.id, theirs.tenant) == ("a", "acme", "b", "other")
        assert other.arrived() == acme.arrived() == 0
        await acme.heartbeat()
        await other.heartbeat()
        assert await acme.complete(job)
        assert await other.complete(theirs)


async def test_no_tenant_ends_or_extends_a_job_of_another() -> None:
    async with serving("ends") as (store, address):
        await put(store, "acme", "a")
        mine = FakeWorker(address, ["mail"], name="w1", token="acme")
        (job,) = await mine.claim(call="c1")
        other = FakeWorker(address, ["mail"], name="w1", token="other")
        assert not await other.complete(job, "stolen")
        extended = await other.stub.Extend(
            pb.ExtendRequest(leases=[ref(job)]), metadata=(("authorization", "Bearer other"),)
        )
        assert [each.state for each in extended.states] == ["lost"]
        assert not await other.release(job)
        assert await mine.complete(job, "mine")
        assert (await get(store, "acme", "a")).result == b'"mine"'


async def test_the_token_of_a_lease_does_not_follow_from_the_names_of_worker_and_call() -> None:
    async with serving("guess") as (store, address):
        tokens = []
        for tenant in ("acme", "other"):
            await put(store, tenant, "a")
            worker = FakeWorker(address, ["mail"], name="w1", token=tenant)
            (job,) = await worker.claim(call="c1")
            assert [each.token for each in await worker.claim(call="c1")] == [job.token]
            tokens.append(job.token.partition("/")[2])
        assert tokens[0] != tokens[1]
        assert "c1" not in tokens[0]


async def test_a_session_of_another_tenant_is_refused() -> None:
    async with (
        serving("session") as (_, address),
        FakeWorker(address, ["mail"], name="w1", token="acme") as acme,
    ):
        thief = FakeWorker(address, ["mail"], name="w1", token="other")
        thief.session = acme.session
        with pytest.raises(InvalidJob, match="belongs to another tenant"):
            await thief.heartbeat()
        with pytest.raises(InvalidJob, match="belongs to another tenant"):
            await thief.open_stream()


async def test_a_worker_cannot_name_another_tenant() -> None:
    async with serving("named") as (store, address):
        await put(store, "acme", "a")
        with pytest.raises(JobNotFound):
            await FakeWorker(address, ["mail"], tenant="acme", token="other").register()
        with pytest.raises(JobNotFound):
            await FakeWorker(address, ["mail"], tenant="acme", token="other").claim()
        await nothing_happens(0.05, "the job would be active")
        assert (await get(store, "acme", "a")).state == "waiting"


async def test_a_token_without_the_scope_work_takes_no_jobs() -> None:
    async with serving("scope") as (_, address):
        reader = FakeWorker(address, ["mail"], token="acme/read")
        with pytest.raises(AccessDenied, match="needs the scope work"):
            await reader.register()
        with pytest.raises(AccessDenied, match="needs the scope work"):
            await reader.claim()


async def test_a_stream_ends_soon_after_its_token_has_expired() -> None:
    names = Names()
    async with open_store("memory://workers-tenants-expired") as store:
        settings = ServerSettings(grpc_port=0, lease_ms=1_500)
        context = ServerContext(store, settings, authenticator=names)
        async with (
            Host(context, [WorkerService]) as host,
            FakeWorker(f"127.0.0.1:{host.port}", ["mail"], token="acme") as worker,
        ):
            names.expired.add("acme")
            with pytest.raises(Unauthenticated, match="has expired"):
                await worker.job()
