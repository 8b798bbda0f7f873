"""Client certificates instead of tokens: every call × every way in which it must be refused."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest
from click.testing import CliRunner
from grpc import StatusCode

from jobq import Every, Queue, Worker, current_job
from jobq.access.principal import SCOPES, ClientGrant, Scope
from jobq.access.table import CALLS
from jobq.cli.ctl import main as ctl_main
from jobq.client import tenants
from jobq.core.records.jobs import JobKey, JobSpec, QueueName
from jobq.core.records.queues import QueueConfig
from jobq.errors import ConfigError, Unauthenticated
from jobq.rpc import frames
from jobq.rpc.v1 import admin_pb2
from jobq.rpc.v1.admin_pb2_grpc import AdminServiceStub
from jobq.server.config import ServerSettings
from jobq.server.tls import Certificates, Clients, TlsFiles
from jobq.server.tokens import KeySet, TokenRules, Tokens, secret_key
from jobq.stores import open_store
from tests.server.kit import SECRET, Authority, token
from tests.server.matrix import (
    MARK,
    MISSING,
    OTHER,
    SENT,
    SERVED,
    calls_in,
    enough,
    exchange,
    fill,
    make_call,
    seen,
)
from tests.server.serving import PATIENCE_S, RunningServer

URI = "spiffe://example.org/worker"
ACME = QueueName("acme", "x")
_SOME = sorted(SCOPES - {"admin"})
SUBSETS: dict[frozenset[Scope], str] = {
    frozenset(scopes): "-".join(scopes)
    for n in range(1, len(_SOME) + 1)
    for scopes in itertools.combinations(_SOME, n)
}
GRANTS = {
    **{name: ClientGrant(tenant="acme", scopes=name.split("-")) for name in SUBSETS.values()},
    "admin": ClientGrant(tenant="acme", scopes=["admin"]),
    "operator": ClientGrant(scopes=["admin"]),
    URI: ClientGrant(tenant="acme", scopes=["work"]),
}


class Secured:
    """A server that needs client certificates, and channels with certificates."""

    def __init__(self, folder: Path, *, tokens: bool = False) -> None:
        self._folder = folder
        self.authority = Authority.make()
        self.ca = self.authority.write(folder / "ca.crt")
        cert, key = self.authority.issue(folder, "server")
        rules = Tokens(KeySet([secret_key(SECRET, frozenset())]), TokenRules(audience="jobq"))
        self.server = RunningServer(
            settings=ServerSettings(
                grpc_port=0, certificates=Certificates(TlsFiles(cert, key, self.ca))
            ),
            authenticator=rules if tokens else None,
            clients=Clients(GRANTS),
        )
        self._channels: dict[str, grpc.Channel] = {}

    def channel(self, name: str, *uris: str, subject: str | None = None) -> grpc.Channel:
        """A connection with a certificate of this name."""
        if name not in self._channels:
            cert, key = self.authority.issue(self._folder, name, subject=subject, uris=uris)
            credentials = grpc.ssl_channel_credentials(
                self.ca.read_bytes(), key.read_bytes(), cert.read_bytes()
            )
            self._channels[name] = grpc.secure_channel(self.server.address, credentials)
        return self._channels[name]

    def without(self, needed: frozenset[Scope]) -> grpc.Channel | None:
        """A connection with every scope but the needed ones. None: nothing is left."""
        left = SCOPES - needed - {"admin"}
        return self.channel(SUBSETS[left]) if left else None

    def url(self, name: str) -> str:
        """The server as a store, with the certificate of this name."""
        self.channel(name)
        pair = f"cert={self._folder / name}.crt&key={self._folder / name}.key"
        return f"grpcs://{self.server.address}?ca={self.ca}&{pair}"

    def stop(self) -> None:
        for channel in self._channels.values():
            channel.close()
        self.server.stop()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    found = Secured(tmp_path_factory.mktemp("clients"))
    found.server.do(fill(found.server.context.store))
    yield found
    found.stop()


@pytest.fixture(autouse=True)
def untouched(secured: Secured) -> Iterator[None]:
    """No test changes anything of the other tenant."""
    server = secured.server
    before = server.do(seen(server.context.store))
    yield
    assert server.do(seen(server.context.store)) == before


def status(channel: grpc.Channel, bearer: str | None = None) -> admin_pb2.GetStatusResponse:
    metadata = () if bearer is None else (("authorization", f"Bearer {bearer}"),)
    return AdminServiceStub(channel).GetStatus(
        admin_pb2.GetStatusRequest(), metadata=metadata, timeout=PATIENCE_S
    )


# ── every call ────────────────────────────────────────────────────────────────────────────────────


def test_a_certificate_that_is_not_listed_is_refused_by_every_call(secured: Secured) -> None:
    for channel in (
        secured.channel("nobody"),
        secured.channel("other-uri", "spiffe://example.org/other"),
        secured.channel("uri-as-name", subject=URI),
        secured.channel("two-names", URI, subject="admin"),
        *(
            secured.channel(f"relative-{n}", *uris, subject="nobody")
            for n, uris in enumerate([("admin",), ("operator",), ("x", "admin"), ("produce-read",)])
        ),
    ):
        for name, method in SERVED.items():
            found = make_call(channel, method, None)
            assert found.code is StatusCode.UNAUTHENTICATED, (name, found)
        refusal = exchange(channel, None, calls_in(OTHER, SENT))[0]
        assert isinstance(refusal, frames.Refusal), refusal
        assert refusal.error == "Unauthenticated"


def test_a_certificate_without_the_scope_is_refused_by_every_call(secured: Secured) -> None:
    for name, method in SERVED.items():
        for scopes, certificate in SUBSETS.items():
            found = make_call(secured.channel(certificate), method, None)
            refused = found.code is StatusCode.PERMISSION_DENIED
            if method.name != "Events":  # whether the reader is new there depends on other tests
                assert refused is not enough(method.name, scopes), (name, certificate, found)
            assert not refused or "the certificate of" in found.details
    for call in SENT:
        (needed,) = CALLS[call].needs
        if (channel := secured.without(needed)) is not None:
            refusal = exchange(channel, None, calls_in(ACME, [call]))[1]
            assert isinstance(refusal, frames.Refusal), (call, refusal)
            assert refusal.error == "AccessDenied"


def test_another_tenant_looks_missing_to_a_certificate_of_one_tenant(secured: Secured) -> None:
    channel = secured.channel("admin")
    for name, method in SERVED.items():
        named = make_call(channel, method, None, tenant="other")
        if method.name not in ("GetVersion", "ListTenants"):
            assert named.code is StatusCode.NOT_FOUND, (name, named)
        found = make_call(channel, method, None)
        assert found.code not in (StatusCode.INTERNAL, StatusCode.UNKNOWN), (name, found)
        assert MARK not in found.replies
    for call in SENT:
        reply = exchange(channel, None, calls_in(OTHER, [call]))[1]
        if call in MISSING:
            assert isinstance(reply, frames.Reply), (call, reply)
            assert msgspec.msgpack.decode(reply.result) == MISSING[call]
        else:
            assert isinstance(reply, frames.Refusal), (call, reply)
            assert reply.error == "JobNotFound"


# ── who is who ────────────────────────────────────────────────────────────────────────────────────


def test_a_certificate_is_known_by_its_common_name_or_a_uri(secured: Secured) -> None:
    found = status(secured.channel("admin"))
    assert (found.subject, found.tenant, list(found.scopes)) == ("admin", "acme", ["admin"])
    operator = status(secured.channel("operator"))
    assert (operator.subject, operator.tenant) == ("operator", "")
    by_uri = secured.channel("by-uri", "https://else.example", URI, subject="anything")
    with pytest.raises(grpc.RpcError) as refused:
        status(by_uri)  # work alone does not read
    assert isinstance(refused.value, grpc.Call)
    assert f"the certificate of '{URI}' has work" in (refused.value.details() or "")


def test_a_token_means_nothing_to_a_server_without_tokens(secured: Secured) -> None:
    with pytest.raises(grpc.RpcError) as refused:
        status(secured.channel("nobody"), token(scope="admin", tenant=None))
    assert isinstance(refused.value, grpc.Call)
    assert refused.value.code() is StatusCode.UNAUTHENTICATED
    assert status(secured.channel("admin"), "x.y.z").subject == "admin"


async def test_a_client_of_ours_needs_no_token(secured: Secured) -> None:
    async with open_store(secured.url("produce-read")) as store:
        (result,) = await store.put([JobSpec(queue=ACME, id="1", name="n", payload=b"[[],{}]")])
        assert not result.duplicate
        (record,) = await store.get([JobKey(ACME, "1")])
        assert record is not None


def test_a_token_counts_before_the_certificate_if_the_server_checks_both(tmp_path: Path) -> None:
    both = Secured(tmp_path, tokens=True)
    try:
        assert status(both.channel("admin")).subject == "admin"
        assert status(both.channel("admin"), token(scope="read")).subject == "ann"
        assert status(both.channel("nobody"), token(scope="read")).subject == "ann"
        for channel, bearer in ((both.channel("admin"), "x.y.z"), (both.channel("nobody"), None)):
            with pytest.raises(grpc.RpcError) as refused:
                status(channel, bearer)
            assert isinstance(refused.value, grpc.Call)
            assert refused.value.code() is StatusCode.UNAUTHENTICATED
    finally:
        both.stop()


def test_a_certificate_that_expires_is_refused_in_the_middle_of_a_connection(
    tmp_path: Path,
) -> None:
    cert, _ = Authority.make().issue(tmp_path, "admin", days=1)
    now = 0.0
    clients = Clients(GRANTS, clock=lambda: now)
    found = clients.principal(cert.read_bytes())
    assert found.expires_s is not None
    now = found.expires_s
    with pytest.raises(Unauthenticated, match="the certificate has expired"):
        clients.principal(cert.read_bytes())


@pytest.mark.parametrize("certificate", [None, b"", b"-----BEGIN CERTIFICATE-----\nAA==\n"])
def test_something_that_is_no_certificate_is_refused(certificate: bytes | None) -> None:
    with pytest.raises(Unauthenticated):
        Clients(GRANTS).principal(certificate)


# ── clients that name no tenant ───────────────────────────────────────────────────────────────────


@pytest.fixture
def everything(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> str:
    """The server as a store, with a certificate of the tenant acme that may do everything."""
    for name in ("JQ_TENANT", "JQ_TOKEN", "JQ_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(tenants, "_granted", {})
    return secured.url("admin")


async def _opened(queue: Queue) -> str:
    async with queue:
        return queue.tenant


async def _enqueued_by_name(queue: Queue) -> str:
    job = await queue.task_by_name("n").enqueue()
    info = await job.info()
    await queue.aclose()
    return info.tenant


async def _in_a_flow(queue: Queue) -> str:
    async with queue.flow() as flow:
        flow.add(queue.task_by_name("first"))
        flow.add(queue.task_by_name("second"))
    (found,) = {info.tenant async for info in queue.find()}
    await queue.aclose()
    return found


async def _scheduled(queue: Queue) -> str:
    await queue.schedule("nightly", Every(3600), queue.task_by_name("n"))
    (found,) = await queue.schedules()
    await queue.aclose()
    return queue.tenant if found.id == "nightly" else ""


async def _blocking(queue: Queue) -> str:
    def use() -> str:
        queue.sync.task_by_name("n").enqueue()
        (info, *_) = list(queue.sync.find())
        queue.sync.close()
        return info.tenant

    return await asyncio.to_thread(use)


async def _worked(queue: Queue) -> str:
    tenants_seen = []

    @queue.task
    async def work() -> None:
        tenants_seen.append(current_job().tenant)

    async with Worker(queue):
        await (await work.enqueue()).result(timeout=PATIENCE_S)
    await queue.aclose()
    return tenants_seen[0]


@pytest.mark.parametrize(
    "use", [_opened, _enqueued_by_name, _in_a_flow, _scheduled, _blocking, _worked]
)
async def test_a_client_has_the_tenant_of_its_certificate(everything: str, use: Any) -> None:
    assert await use(Queue(f"of{use.__name__}".replace("_", "-"), everything)) == "acme"


async def test_naming_the_tenant_of_the_certificate_is_fine_and_another_is_refused(
    everything: str, secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await _opened(Queue("x", everything, tenant="acme")) == "acme"
    with pytest.raises(ConfigError, match="the certificate is for the tenant 'acme'"):
        await _opened(Queue("x", everything, tenant="other"))
    with pytest.raises(ConfigError, match="the certificate is for the tenant 'acme'"):
        await Queue("x", everything, tenant="default").task_by_name("n").enqueue()
    assert await _opened(Queue("x", secured.url("operator"), tenant="other")) == "other"
    assert await _opened(Queue("x", secured.url("operator"))) == "default"
    monkeypatch.setenv("JQ_TENANT", "other")
    with pytest.raises(ConfigError, match="the certificate is for the tenant 'acme'"):
        await _opened(Queue("x", everything))


@pytest.mark.parametrize(
    "command",
    [
        ["queue", "list"],
        ["job", "submit", "charge", "-q", "ctl"],
        ["job", "list", "-q", "ctl"],
        ["queue", "pause", "ctl"],
        ["queue", "resume", "ctl"],
        ["worker", "list"],
        ["status"],
    ],
    ids=" ".join,
)
def test_jq_ctl_has_the_tenant_of_its_certificate(
    everything: str, secured: Secured, command: list[str]
) -> None:
    secured.server.do(secured.server.context.store.declare(QueueName("acme", "ctl"), QueueConfig()))
    right = CliRunner().invoke(ctl_main, ["--url", everything, *command])
    assert right.exit_code == 0, right.output
    named = CliRunner().invoke(ctl_main, ["--url", everything, "--tenant", "acme", *command])
    assert named.exit_code == 0, named.output
    wrong = CliRunner().invoke(ctl_main, ["--url", everything, "--tenant", "other", *command])
    assert wrong.exit_code != 0
    assert "the certificate is for the tenant 'acme'" in " ".join(wrong.output.split())
