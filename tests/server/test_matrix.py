"""Every call × every way in which its caller may not make it.

The calls come from the descriptors of the services and from the Store contract, so a new call
without a row here fails a test. Whatever a caller tries, nothing of another tenant changes, and
nothing of it is told.
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import msgspec
import pytest
from grpc import StatusCode

from jobq.access.guarded.rules import MAX_LIMIT
from jobq.access.principal import Scope
from jobq.access.table import CALLS, PARTS, RPCS
from jobq.core.records.jobs import JobKey, QueueName, Topic
from jobq.rpc import contract, frames
from jobq.server.config import MAX_LEASE_MS, MIN_LEASE_MS
from jobq.server.tokens import KeySet, TokenRules, Tokens, secret_key
from jobq.stores.base import Store
from scripts.access_doc import PROTOS, main, wrong_comments
from tests.server.kit import AUDIENCE, ISSUER, SECRET, claims, token
from tests.server.matrix import (
    DESCRIPTORS,
    MARK,
    MISSING,
    OTHER,
    SENT,
    SERVED,
    SUBSETS,
    WAYS,
    arguments,
    calls_in,
    enough,
    exchange,
    fill,
    make_call,
    seen,
)
from tests.server.serving import RunningServer

# ── a server with two tenants ─────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    rules = TokenRules(issuer=ISSUER, audience=AUDIENCE)
    tokens = Tokens(KeySet([secret_key(SECRET, frozenset())]), rules)
    running = RunningServer(authenticator=tokens)
    running.do(fill(running.context.store))
    yield running
    running.stop()


@pytest.fixture
def untouched(server: RunningServer) -> Iterator[None]:
    """The test changes nothing of the other tenant."""
    before = server.do(seen(server.context.store))
    yield
    assert server.do(seen(server.context.store)) == before


# ── tokens that must not work ─────────────────────────────────────────────────────────────────────


def _wrong_tokens() -> dict[str, str | None]:
    now = int(time.time())
    good: dict[str, Any] = {"scope": "admin"}
    head, body, _ = token(**good).split(".")
    return {
        "no token": None,
        "not a token": "x.y.z",
        "expired": token(exp=now - 3600, **good),
        "not yet valid": token(nbf=now + 3600, **good),
        "wrong issuer": token(iss="https://other.example", **good),
        "wrong audience": token(aud="billing", **good),
        "wrong key": token(b"another secret that is long enough, too", **good),
        "wrong algorithm": token(SECRET * 2, "HS512", **good),
        "alg none": jwt.encode(claims(**good), "", algorithm="none"),
        "without signature": f"{head}.{body}.",
        "without tenant": token(tenant=None, scope="produce work read"),
    }


WRONG = _wrong_tokens()
ADMIN = token(scope="admin")
EVERYWHERE = token(scope="admin", tenant=None)


def test_every_call_of_every_service_has_a_row() -> None:
    names = {method.name for method in DESCRIPTORS.values()}
    assert names == set(WAYS), "say in the .proto file which scope the call needs"
    assert names == set(RPCS), "say in access/table.py which scope the call needs"
    assert len(names) == len(DESCRIPTORS), "two services have a call of the same name"


def test_the_comments_of_the_services_say_what_the_table_says() -> None:
    for name in PROTOS:
        text = Path(f"proto/jobq/v1/{name}.proto").read_text()
        assert not list(wrong_comments(name, text))
        wrong = text.replace("Scope: admin.", "Scope: read.").replace("Scope: work.", "Only work.")
        stated = text.count("Scope: admin.") + text.count("Scope: work.")
        assert len(list(wrong_comments(name, wrong))) == stated


def test_the_page_of_the_guide_is_made_from_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["--check"]) == 0
    monkeypatch.setitem(RPCS, "Submit", RPCS["GetVersion"])
    assert main(["--check"]) == 1


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.usefixtures("untouched")
def test_a_wrong_token_is_refused_by_every_call(server: RunningServer, name: str) -> None:
    for kind, wrong in WRONG.items():
        found = make_call(server.channel, SERVED[name], wrong)
        assert found.code is StatusCode.UNAUTHENTICATED, (kind, found)
        assert wrong is None or wrong not in found.details


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.usefixtures("untouched")
def test_every_set_of_scopes_may_do_what_the_services_say_and_nothing_else(
    server: RunningServer, name: str
) -> None:
    method = SERVED[name]
    for n, scopes in enumerate(SUBSETS):  # each has an empty tenant: no reader is known there
        tenant = f"{method.name}-{n}".lower()
        found = make_call(server.channel, method, token(scope=sorted(scopes), tenant=tenant))
        refused = found.code is StatusCode.PERMISSION_DENIED
        assert refused is not enough(method.name, scopes), (sorted(scopes), found)


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.usefixtures("untouched")
def test_another_tenant_that_is_named_looks_missing_to_every_call(
    server: RunningServer, name: str
) -> None:
    found = make_call(server.channel, SERVED[name], ADMIN, tenant="other")
    if SERVED[name].name == "GetVersion":
        assert found.code is StatusCode.OK
    elif SERVED[name].name == "ListTenants" and found.code is StatusCode.OK:
        assert b"other" not in found.replies
    else:
        assert found.code is StatusCode.NOT_FOUND, found


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.usefixtures("untouched")
def test_the_names_of_another_tenants_things_mean_nothing_to_every_call(
    server: RunningServer, name: str
) -> None:
    found = make_call(server.channel, SERVED[name], ADMIN)
    assert found.code not in (StatusCode.INTERNAL, StatusCode.UNKNOWN), found
    assert MARK not in found.replies


def test_every_call_of_the_contract_has_arguments_here() -> None:
    assert set(arguments(OTHER)) == set(SENT)
    assert set(CALLS) - set(SENT) == {"migrate", "aclose", "listen"}


@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.usefixtures("untouched")
def test_a_stream_with_a_wrong_token_carries_out_no_call(server: RunningServer, kind: str) -> None:
    topics = contract.raw([Topic("log", OTHER, None)])
    calls = [*calls_in(OTHER, SENT), frames.Call(99, "listen", topics)]
    found = exchange(server.channel, WRONG[kind], calls)
    assert set(found) == {0}, found
    refusal = found[0]
    assert isinstance(refusal, frames.Refusal)
    assert refusal.error == "Unauthenticated"


@pytest.mark.parametrize("scopes", SUBSETS, ids=lambda scopes: "-".join(sorted(scopes)) or "none")
@pytest.mark.usefixtures("untouched")
def test_every_set_of_scopes_may_make_the_calls_of_the_table_on_the_stream(
    server: RunningServer, scopes: frozenset[Scope]
) -> None:
    calls = calls_in(QueueName("acme", "x"), SENT)
    found = exchange(server.channel, token(scope=sorted(scopes)), calls)
    for number, name in enumerate(SENT, 1):
        reply = found[number]
        refused = isinstance(reply, frames.Refusal) and reply.error == "AccessDenied"
        rule = PARTS.get(f"{name} with a position", CALLS[name])
        allowed = "admin" in scopes or all(needed & scopes for needed in rule.needs)
        assert refused is not allowed, (name, reply)


@pytest.mark.parametrize("name", SENT)
@pytest.mark.usefixtures("untouched")
def test_a_call_that_names_another_tenant_finds_nothing_on_the_stream(
    server: RunningServer, name: str
) -> None:
    reply = exchange(server.channel, ADMIN, calls_in(OTHER, [name]))[1]
    if name in MISSING:
        assert isinstance(reply, frames.Reply), reply
        assert msgspec.msgpack.decode(reply.result) == MISSING[name]
    else:
        assert isinstance(reply, frames.Refusal), reply
        assert reply.error == "JobNotFound"
        assert "other" in reply.message


HOW_MANY = {
    name: argument
    for name in SENT
    for argument in inspect.signature(getattr(Store, name)).parameters
    if argument in ("limit", "count", "minutes")
}
"""The calls that take how many records to read or to change, and the name of that argument."""


@pytest.mark.parametrize("name", HOW_MANY)
@pytest.mark.parametrize(("given", "expected"), [(2**62, MAX_LIMIT), (-1, 0)])
def test_no_call_on_the_stream_asks_the_store_for_more_than_a_bounded_number(
    server: RunningServer, name: str, given: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, asked = server.context.store, list[int]()
    call = getattr(store, name)

    async def noted(*args: Any, **options: Any) -> Any:
        asked.append(options[HOW_MANY[name]])
        return await call(*args, **options)

    monkeypatch.setattr(store, name, noted)
    named = {**arguments(QueueName("acme", "bounds"))[name], HOW_MANY[name]: given}
    raw = contract.raw(contract.METHODS[name].arguments(**named))
    reply = exchange(server.channel, EVERYWHERE, [frames.Call(1, name, raw)])[1]
    assert isinstance(reply, frames.Reply), reply
    assert expected in asked
    assert all(0 <= each <= MAX_LIMIT for each in asked)


def test_a_stream_that_listens_to_another_tenant_is_refused(server: RunningServer) -> None:
    for kind in ("ended", "noted", "log"):
        topics = contract.raw([Topic(kind, OTHER, "1")])
        reply = exchange(server.channel, ADMIN, [frames.Call(1, "listen", topics)])[1]
        assert isinstance(reply, frames.Refusal), reply
        assert reply.error == "JobNotFound"
    reply = exchange(
        server.channel, ADMIN, [frames.Call(1, "expect", contract.raw(JobKey(OTHER, "1")))]
    )[1]
    assert isinstance(reply, frames.Refusal), reply
    assert reply.error == "JobNotFound"


def test_two_waits_of_one_number_end_the_stream(server: RunningServer) -> None:
    """Otherwise the first one would run on, uncounted, after the stream has ended."""
    given = contract.METHODS["sleep"].arguments(
        [QueueName("acme", "x")], worker="w", slots=1, timeout_ms=3_600_000
    )
    calls = [frames.Call(1, "sleep", contract.raw(given)) for _ in range(2)]
    refusal = exchange(server.channel, ADMIN, calls)[0]
    assert isinstance(refusal, frames.Refusal), refusal
    assert "the number 1 belongs to a call that still runs" in refusal.message


LEASES = [name for name, method in SERVED.items() if "lease_ms" in method.input_type.fields_by_name]


@pytest.mark.parametrize("name", LEASES)
def test_the_bounds_of_a_lease_are_those_that_its_proto_says(
    server: RunningServer, name: str
) -> None:
    for ms in (-1, 1, MIN_LEASE_MS - 1, MAX_LEASE_MS + 1, 2**62):
        found = make_call(server.channel, SERVED[name], ADMIN, lease_ms=ms)
        assert found.code is StatusCode.INVALID_ARGUMENT, (ms, found)
        assert f"from {MIN_LEASE_MS} to {MAX_LEASE_MS}" in found.details
    for ms in (0, MIN_LEASE_MS, MAX_LEASE_MS):
        found = make_call(server.channel, SERVED[name], ADMIN, lease_ms=ms)
        assert found.code is StatusCode.OK, (ms, found)


def test_every_lease_time_of_the_services_says_its_bounds() -> None:
    text = Path("proto/jobq/v1/workers.proto").read_text()
    comments = re.findall(r"((?:^  //[^\n]*\n)*)^  int64 lease_ms = ", text, re.MULTILINE)
    assert len(comments) == text.count(" lease_ms = ") == len(LEASES) + 1  # and that of Register
    for comment in comments:
        assert f"from {MIN_LEASE_MS:,} to {MAX_LEASE_MS:,}" in " ".join(
            line.strip(" /") for line in comment.splitlines()
        )
