"""Every error of a store × every door: no caller reads where the store is, or who uses it.

The errors have the texts of our stores and their drivers. They are raised by every call of a real
store, so that whatever a door calls fails.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from grpc import StatusCode

from jobq import errors
from jobq.access.caller_errors import CallerErrors
from jobq.access.table import CALLS, ROUTES
from jobq.core.records.jobs import QueueName, Topic
from jobq.errors import InvalidJob, JobqError, StoreUnavailable
from jobq.rpc import contract, frames
from jobq.rpc.v1 import jobs_pb2
from jobq.server.config import ServerSettings
from jobq.stores.base import Store
from jobq.web.site import Dashboard
from jobq_conformance.places import PLACES
from tests.server.matrix import SENT, SERVED, calls_in, exchange, make_call
from tests.server.serving import RunningServer, running
from tests.stores.valkey.servers import Server, valkey_or_skip
from tests.web.kit import Browser

URL = "postgresql://jq_user@db.internal.example:6543/payroll"
SECRETS = ("db.internal.example", "10.9.8.7", "6543", "jq_user", "payroll")
TEXTS = (
    f"{URL} is unavailable: FATAL: no pg_hba.conf entry for host",
    "db.internal.example:6543 cannot serve now: LOADING the dataset",
    'connection to server at "10.9.8.7", port 6543 failed: FATAL: password authentication failed '
    'for user "jq_user" of database "payroll"',
)
"""How our stores, and the drivers of their servers, say what is wrong."""

KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, JobqError) and kind is not errors.JobFailed
]
FOREIGN = (OSError, RuntimeError, KeyError, ConnectionResetError, UnicodeError)
"""What a driver may raise that no store has expected."""
RAISED: list[Exception] = [
    *(StoreUnavailable(text) for text in TEXTS),
    *(kind(text) for kind in KINDS for text in TEXTS[:2] if kind is not StoreUnavailable),
    *(kind(TEXTS[2]) for kind in FOREIGN),
]


def _id(error: object) -> str:
    return f"{type(error).__name__}-{[text in str(error) for text in TEXTS].index(True)}"


def _fail_with(store: Store, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*args: object, **options: object) -> None:
        raise error

    def fails_at_once(*args: object, **options: object) -> None:
        raise error

    for name in CALLS:
        if name not in ("aclose", "migrate"):
            monkeypatch.setattr(store, name, fails_at_once if name == "listen" else fails)


def _check(said: str, door: str) -> None:
    said = re.sub(r"\b[0-9a-f]{64}\b|\b\d{13}\b", "", said)  # random tokens, and times
    found = [secret for secret in SECRETS if secret in said]
    assert not found, f"{door} tells {found}: {said}"


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running(settings=ServerSettings(grpc_port=0, upkeep=False)) as found:
        # Services hold the object already.
        vars(found.context.error_for_caller).update(vars(CallerErrors(URL)))
        yield found


@pytest.mark.parametrize("error", RAISED, ids=_id)
def test_no_rpc_and_no_call_of_the_stream_tells_where_the_store_is(
    server: RunningServer, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fail_with(server.context.store, error, monkeypatch)
    codes = set()
    for name, method in SERVED.items():
        found = make_call(server.channel, method, None)
        _check(f"{found.details} {found.replies!r}", name)
        codes.add(found.code)
    assert codes - {StatusCode.OK, StatusCode.INVALID_ARGUMENT}, "no RPC has reached the store"
    queue = QueueName("acme", "x")
    topics = contract.raw([Topic("log", queue, None)])
    calls = [*calls_in(queue, SENT), frames.Call(99, "listen", topics)]
    for number, frame in exchange(server.channel, None, calls).items():
        assert isinstance(frame, (frames.Refusal, frames.Reply)), frame
        _check(msgspec.json.encode(frame, enc_hook=repr).decode(), f"call {number}")


@pytest.mark.parametrize("error", RAISED, ids=_id)
async def test_no_route_of_the_dashboard_tells_where_the_store_is(
    tmp_path: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    with contextmanager(PLACES["memory"])(tmp_path) as fresh:
        async with fresh()(lambda: 1_700_000_000_000) as store:
            store.url = URL
            dashboard = Dashboard(
                store, sign_in=None, read_only=False, hide_payloads=False, secret=None
            )
            browser = Browser(dashboard)
            _fail_with(store, error, monkeypatch)
            for name, door in ROUTES.items():
                if door.needs:
                    _check((await _asked(browser, name)).text, name)
            monkeypatch.undo()
            await browser.http.aclose()
            await dashboard.aclose()


async def _asked(browser: Browser, name: str) -> httpx.Response:
    method, _, path = name.partition(" ")
    given = {"tenant": "acme", "queue": "mail", "id": "1", "name": "w", "part": "result"}
    if method == "GET":
        return await browser.get(path, **given)
    body: dict[str, Any] = {key: given[key] for key in ("tenant", "queue")}
    if path.startswith(("/api/v1/job/", "/api/v1/flow/", "/api/v1/schedule/")):
        body["id"] = "1"
    elif path.startswith("/api/v1/worker/"):
        body = {"name": "w"}
    more: dict[str, dict[str, Any]] = {
        "/queue/hold": {"seconds": 1},
        "/queue/limits": {"limit": 5},
        "/queue/purge": {"state": "failed"},
        "/queue/release-lock": {"lock": "l"},
        "/job/reprioritise": {"priority": 1},
        "/job/reschedule": {"delay_s": 1},
        "/job/update": {"arguments": "{}"},
        "/job/signal": {"name": "go"},
        "/jobs/": {"state": "failed"},
        "/worker/concurrency": {"concurrency": 1},
    }
    for part, fields in more.items():
        if path.startswith(f"/api/v1{part}"):
            body |= fields
    reply = await browser.post(path.removeprefix("/api/v1/"), **body)
    assert reply.status_code != 400 or "unknown field" not in reply.text, (name, reply.text)
    return reply


def test_a_job_of_a_bulk_that_is_refused_later_tells_nothing_either(
    server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, calls = server.context.store.put, list[int]()

    async def fails_later(specs: Any, **options: Any) -> Any:
        calls.append(len(specs))
        if len(calls) > 1:
            raise errors.ConfigError(TEXTS[0])
        return await put(specs, **options)

    monkeypatch.setattr(server.context.store, "put", fails_later)
    new = jobs_pb2.SubmitManyRequest()
    for _ in range(3_000):
        new.jobs.add(queue="bulk", name="n")
    reply = server.jobs.SubmitMany(new, timeout=30)
    refused = [each.refused.message for each in reply.results if each.HasField("refused")]
    assert refused
    for message in refused:
        _check(message, "SubmitMany")


# ── the number ────────────────────────────────────────────────────────────────────────────────────


def test_the_number_leads_to_what_the_store_said_and_is_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caller_errors = CallerErrors(URL)
    with caplog.at_level(logging.INFO, "jobq.server"):
        said = [str(caller_errors(StoreUnavailable(TEXTS[2]), "Submit")) for _ in range(1000)]
        other = str(caller_errors(StoreUnavailable(TEXTS[1]), "Submit"))
    assert len(set(said)) == 1
    assert other not in said
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 2
    for reply, line, text in zip((said[0], other), lines, (TEXTS[2], TEXTS[1]), strict=True):
        number = re.search(r"number ([0-9a-f]{8})", reply)
        assert number is not None
        assert number[1] in line
        assert text in line


def test_what_is_not_about_the_store_is_told_as_it_is() -> None:
    caller_errors = CallerErrors(URL)
    for error in (
        InvalidJob("payload is not JSON"),
        errors.ConfigError("queue 'payroll:6543' is keyed"),
        errors.JobNotFound("there is no job 'invoice:6543'"),
        # What the caller said, which only repeats where the store is:
        InvalidJob("job 3: name 'db.internal.example:6543' is too long"),
        errors.JobNotFound(f"there is no job {URL!r}"),
    ):
        assert caller_errors(error, "Submit") is error


# ── a store that is really gone ───────────────────────────────────────────────────────────────────


def test_a_store_that_is_gone_is_named_to_nobody(tmp_path: Path) -> None:
    valkey = Server(valkey_or_skip(), tmp_path).start()
    try:
        with running(
            f"{valkey.url}?timeout=1", settings=ServerSettings(grpc_port=0, upkeep=False)
        ) as server:
            valkey.kill()
            refused = 0
            for name, method in SERVED.items():
                found = make_call(server.channel, method, None)
                for secret in ("127.0.0.1", str(valkey.port), "valkey"):
                    assert secret not in found.details, (name, found)
                refused += found.code is StatusCode.UNAVAILABLE
            assert refused > 10
    finally:
        valkey.stop()
