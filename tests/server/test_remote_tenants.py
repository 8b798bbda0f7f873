"""grpc:// with tokens: whose queues a caller means, and what a token that ends does to a stream."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

import jobq
from jobq import Queue, Worker, current_job
from jobq.access.principal import Principal, Scope
from jobq.core.records.jobs import JobKey, JobSpec, QueueName
from jobq.errors import (
    AccessDenied,
    ConfigError,
    JobFailed,
    JobNotFound,
    StoreUnavailable,
    Unauthenticated,
)
from jobq.server.config import ServerSettings
from jobq.server.context import ServerContext
from jobq.server.exchange import ExchangeService, Stream
from jobq.server.host import Host
from jobq.stores import open_store
from jobq.stores.remote.store import RemoteStore
from tests.waiting import PATIENCE_S, until, until_it_succeeds

EVERYTHING: tuple[Scope, ...] = ("produce", "work", "read", "admin")


def token_of(tenant: str | None, *scopes: Scope) -> str:
    """A token in the form of a JWT. The authenticator of these tests trusts what it says."""
    claims = {"tenant": tenant, "scopes": scopes or EVERYTHING}
    body = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"e30.{body}.c2ln"


class Trusting:
    """Believes every token, except those that were revoked."""

    def __init__(self) -> None:
        self.revoked: set[str] = set()
        self.refused = 0

    def principal(self, token: str | None) -> Principal:
        if not token or token in self.revoked:
            self.refused += 1
            raise Unauthenticated("the token is missing or revoked")
        body = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        return Principal(
            subject="tester", tenant=claims["tenant"], scopes=frozenset(claims["scopes"])
        )

    async def look_for_key(self) -> bool:
        return False


@asynccontextmanager
async def hosted(name: str, authenticator: Trusting) -> AsyncIterator[str]:
    async with open_store(f"memory://{name}") as store:
        settings = ServerSettings(grpc_port=0, upkeep=False)
        context = ServerContext(store, settings, authenticator=authenticator)
        async with Host(
            context, [lambda context: ExchangeService(context, beat_ms=100, deaf_ms=2_000)]
        ) as host:
            yield f"grpc://127.0.0.1:{host.port}"


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("JQ_TOKEN", "JQ_TOKEN_FILE", "JQ_TENANT"):
        monkeypatch.delenv(name, raising=False)


async def test_a_queue_belongs_to_the_tenant_of_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JQ_TOKEN", token_of("acme"))
    async with hosted("remote-tenant", Trusting()) as url:
        queue = Queue("work", url)

        @queue.task
        async def double(n: int) -> int:
            return 2 * n

        assert queue.tenant == "acme"
        async with queue, Worker(queue, concurrency=1):
            assert await (await double.enqueue(4)).result(timeout=PATIENCE_S) == 8


def test_a_tenant_unlike_the_tokens_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JQ_TOKEN", token_of("acme"))
    assert Queue("work", "grpc://localhost", tenant="acme").tenant == "acme"
    assert Queue("work", "memory://", tenant="other").tenant == "other"
    with pytest.raises(ConfigError, match="the token is for the tenant 'acme'"):
        Queue("work", "grpc://localhost", tenant="other")


@pytest.mark.parametrize("token", [token_of(None), "opaque", "a.b.c", "a.bm90IGpzb24.c"])
def test_a_token_without_a_tenant_leaves_the_choice(
    monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setenv("JQ_TOKEN", token)
    assert Queue("work", "grpc://localhost").tenant == "default"
    assert Queue("work", "grpc://localhost", tenant="other").tenant == "other"


async def test_jobs_of_another_tenant_do_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    async with hosted("remote-other-tenant", Trusting()) as url:
        spec = JobSpec(queue=QueueName("acme", "work"), id="a", name="task", payload=b"[[],{}]")
        monkeypatch.setenv("JQ_TOKEN", token_of("acme"))
        async with open_store(url) as store:
            await store.put([spec])
        monkeypatch.setenv("JQ_TOKEN", token_of("evil"))
        async with open_store(url) as store:
            assert await store.get([JobKey(spec.queue, "a")]) == [None]
            with pytest.raises(JobNotFound):
                await store.put([spec])


async def test_a_scope_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JQ_TOKEN", token_of("acme", "read"))
    async with hosted("remote-scopes", Trusting()) as url, open_store(url) as store:
        with pytest.raises(AccessDenied, match="pause needs the scope admin"):
            await store.pause(QueueName("acme", "work"))


async def test_a_call_of_a_producer_that_may_not_read_fails_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JQ_TOKEN", token_of("acme", "produce"))
    async with hosted("remote-produce", Trusting()) as url, Queue("work", url) as queue:

        @queue.task
        async def double(n: int) -> int:
            return 2 * n

        with pytest.raises(AccessDenied, match="read or work"):
            await asyncio.wait_for(double.options(call_timeout=60).call(1), PATIENCE_S)


async def test_a_server_without_a_token_is_not_opened() -> None:
    async with hosted("remote-no-token", Trusting()) as url:
        store = open_store(url)
        with pytest.raises(Unauthenticated, match="missing"):
            await store.migrate()
        await store.aclose()


async def test_a_stream_ends_with_its_token_and_goes_on_with_the_next_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trusting, file = Trusting(), tmp_path / "token"
    first, second = token_of("acme"), token_of("acme", "produce", "read")
    file.write_text(first)
    monkeypatch.setenv("JQ_TOKEN_FILE", str(file))
    queue = QueueName("acme", "work")
    async with hosted("remote-revoked", trusting) as url, open_store(url) as store:
        await store.count(queue)
        trusting.revoked.add(first)

        async def refused() -> bool:
            try:
                await store.count(queue)
            except (AccessDenied, StoreUnavailable) as error:
                return "revoked" in str(error)
            return False

        await until(refused, "the end of the stream")
        file.write_text(second)

        async def works() -> bool:
            try:
                await store.count(queue)
            except (AccessDenied, StoreUnavailable):
                return False
            return True

        await until(works, "a stream with the new token")


async def test_a_token_that_is_replaced_late_costs_no_outcome(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trusting, file = Trusting(), tmp_path / "token"
    first, second = token_of("acme"), token_of("acme", "produce", "read", "work")
    file.write_text(first)
    monkeypatch.setenv("JQ_TOKEN_FILE", str(file))
    started, go_on = asyncio.Event(), asyncio.Event()
    async with (
        hosted("remote-late-token", trusting) as url,
        open_store("memory://remote-late-token") as behind,
        Queue("work", url) as queue,
    ):

        @queue.task(retry=0)
        async def slow() -> None:
            started.set()
            await go_on.wait()

        async with Worker(queue, lease=60):
            job = await slow.enqueue()
            await asyncio.wait_for(started.wait(), PATIENCE_S)
            trusting.revoked.add(first)
            await until(lambda: trusting.refused > 3, "the end of the streams")
            go_on.set()
            seen = trusting.refused
            await until(lambda: trusting.refused > seen + 3, "more tries with the first token")
            file.write_text(second)

            async def state() -> str:
                (record,) = await behind.get([JobKey(QueueName("acme", "work"), job.id)])
                return "" if record is None or not record.state.ended else str(record.state)

            await until(state, "the end of the job")
            assert (await state()) == "completed"


async def test_a_server_of_another_version_that_takes_over_is_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A refused outcome would be lost, and the next server may have the version of the client."""
    monkeypatch.setenv("JQ_TOKEN", token_of("acme"))

    async def other_version(*_: object) -> None:
        raise ConfigError("the server speaks version 2")

    async with hosted("remote-version", Trusting()) as url, open_store(url) as store:
        with monkeypatch.context() as patched:
            patched.setattr(Stream, "_greet", other_version)
            cast(RemoteStore, store)._connection._lose("the server was replaced")
            with pytest.raises(StoreUnavailable, match="speaks version 2"):
                await store.settle([], worker="w", call="1")
        await until_it_succeeds(
            lambda: store.settle([], worker="w", call="1"), StoreUnavailable, "the old version"
        )


async def test_a_transaction_of_the_caller_needs_postgresql_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A server cannot be part of a transaction of the client's own connection to the database."""
    monkeypatch.setenv("JQ_TOKEN", token_of("acme"))
    async with hosted("remote-transaction", Trusting()) as url, Queue("work", url) as queue:

        @queue.task(retry=0)
        async def finish() -> None:
            await current_job().complete_in(object())

        async with jobq.transaction(object()):
            with pytest.raises(ConfigError, match=r"grpc://.* needs a queue that is stored in"):
                await finish.enqueue()
        async with Worker(queue, concurrency=1):
            job = await finish.enqueue()
            with pytest.raises(JobFailed, match="needs a queue that is stored in PostgreSQL"):
                await job.result(timeout=PATIENCE_S)
