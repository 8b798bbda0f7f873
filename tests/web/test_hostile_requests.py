"""Requests that nobody sends by accident: they are refused, and cost the dashboard little."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from jobq.core.records.jobs import Claim, Fail, Failure, JobSpec, LeaseRef, Note, QueueName
from jobq.core.rules.waits import StepRecord, pack_step
from jobq.stores.base import Store
from jobq.web.data.actions import ACTIONS
from jobq.web.data.reads import READS
from jobq.web.pages import PAGES
from jobq.web.tokens import TokenFile
from tests.web.conftest import Make
from tests.web.kit import fill
from tests.web.test_roles import BODIES, QUERIES

MAIL = {"tenant": "acme", "queue": "mail"}


async def test_a_pattern_with_many_stars_does_not_stop_the_dashboard(
    memory: Store, browse: Make
) -> None:
    queue = QueueName("acme", "slow")
    await memory.put([JobSpec(queue=queue, id="x", name="send", payload=b"[[],{}]")])
    claim = Claim(queues=(queue,), limit=1, lease_ms=60_000)
    (lease,) = (await memory.settle([], worker="v", call="1", then=claim)).leases
    failure = Failure(reason="error", type="ValueError", message="a" * 400)
    failed = Fail(queue=queue, id="x", token=lease.token, failure=failure)
    await memory.settle([failed], worker="v", call="2")
    began = time.monotonic()
    found = await browse(memory).read("jobs", tenant="acme", queue="slow", error="*a*a*a*a*b")
    assert found["jobs"] == []
    assert time.monotonic() - began < 5.0, "a regular expression takes more than 20 s"


async def test_an_address_that_is_none_is_refused(memory: Store, browse: Make) -> None:
    browser = browse(memory)
    for host in ("[", "[::1"):
        reply = await browser.http.get("/", headers={"Host": host})
        assert reply.status_code == 403, host
        assert "Content-Security-Policy" in reply.headers
    for path in ("/sign-in", "/sign-out", "/api/v1/queue/pause"):
        reply = await browser.http.post(path, json=MAIL, headers={"Origin": "http://["})
        assert reply.status_code == 403, path


async def test_a_place_to_go_back_to_that_is_none_leads_to_the_first_page(
    memory: Store, browse: Make, tmp_path: Path
) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("0123456789abcdef ann admin\n")
    browser = browse(memory, sign_in=TokenFile(tokens))
    for target in ("//[", "http://[", "/\t/evil.example", "/\n/evil.example"):
        fields = {"token": "0123456789abcdef", "next": target}
        reply = await browser.http.post("/sign-in", data=fields)
        assert (reply.status_code, reply.headers["location"]) == (303, "/"), target


async def test_a_csrf_token_that_is_no_text_is_wrong(memory: Store, browse: Make) -> None:
    browser = browse(memory)
    await browser.csrf_token()
    for token in (1, 1.5, True, ["x"], {"x": "y"}):
        body = {**MAIL, "csrf_token": token}
        for path in ("/api/v1/queue/pause", "/sign-out"):
            assert (await browser.http.post(path, json=body)).status_code == 403, token


async def test_a_form_with_too_many_fields_is_refused(memory: Store, browse: Make) -> None:
    fields = {f"f{number}": "1" for number in range(101)}
    for path in ("/sign-in", "/sign-out", "/api/v1/queue/pause"):
        reply = await browse(memory).http.post(path, data=fields)
        assert reply.status_code == 400, path
        assert "more than 100 fields" in reply.text


async def test_json_that_is_nested_too_deeply_is_refused(memory: Store, browse: Make) -> None:
    browser = browse(memory)
    deep, job = "[" * 5_000 + "]" * 5_000, {**MAIL, "id": "later"}
    assert (await browser.post("job/update", **job, arguments=deep)).status_code == 400
    assert (await browser.post("job/signal", **job, name="go", value=deep)).status_code == 400
    headers = {"Content-Type": "application/json"}
    for path in ("/sign-in", "/sign-out", "/api/v1/queue/pause"):
        body = f'{{"next": {deep}}}'
        reply = await browser.http.post(path, content=body, headers=headers)
        assert reply.status_code == 400, path


async def test_the_character_0_reaches_no_store(store: Store, browse: Make) -> None:
    await fill(store)
    browser = browse(store)
    paths = [f"/api/v1{read.path}" for read in READS] + [page.path for page in PAGES]
    for path in (*paths, "/live", "/payload"):
        query = {**QUERIES.get(path.removeprefix("/api/v1"), {}), "tenant": "a\0b", "q": "a\0b"}
        reply = await browser.get(path, **query)
        assert reply.status_code == 400, path
        assert "character 0" in reply.text
    token = {"X-CSRF-Token": await browser.csrf_token()}
    for name, action in ACTIONS.items():
        for field, value in BODIES[name].items():
            if isinstance(value, str):
                body = {**BODIES[name], field: "a\0b"}
                reply = await browser.http.post(f"/api/v1{action.path}", json=body, headers=token)
                assert reply.status_code == 400, (name, field, reply.text)


@pytest.mark.parametrize(
    "progress",
    [
        b"1" + b"0" * 400,
        b"-1" + b"0" * 400,
        b'{"done": 1%b, "total": 1}' % (b"0" * 400),
        b'{"done": 1, "total": 1%b}' % (b"0" * 400),
        b'{"percent": 1e308}',
    ],
)
async def test_a_page_of_a_job_shows_any_progress(
    memory: Store, browse: Make, progress: bytes
) -> None:
    queue = QueueName("acme", "large")
    await memory.put([JobSpec(queue=queue, id="x", name="send", payload=b"[[],{}]")])
    claim = Claim(queues=(queue,), limit=1, lease_ms=60_000)
    (lease,) = (await memory.settle([], worker="v", call="1", then=claim)).leases
    step = pack_step(StepRecord(n=0, result=b"1", attempt=1, at_ms=10**17))
    lease_ref = LeaseRef(queue, "x", lease.token)
    await memory.note([Note(lease=lease_ref, progress=progress, steps=(("far", step),))])
    job = {"tenant": "acme", "queue": "large", "id": "x"}
    assert (await browse(memory).read("job", **job))["percent"] is None
    assert (await browse(memory).get("/job", **job)).status_code == 200
