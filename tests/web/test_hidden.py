"""With hide_payloads, no response contains what users have stored in a job."""

from __future__ import annotations

import pytest

from jobq.core.records.jobs import Claim, Defer, DeferReason, JobSpec, QueueName
from jobq.stores.base import Store
from jobq.web.data.reads import READS
from jobq.web.pages import PAGES
from tests.web.conftest import Make
from tests.web.kit import MARK
from tests.web.test_roles import QUERIES

MAIL = {"tenant": "acme", "queue": "mail"}
JOBS = ("done", "failed", "again", "running", "waiting", "later", "whole")


async def test_hidden_payloads_are_in_no_response(memory: Store, browse: Make) -> None:
    browser = browse(memory, hide_payloads=True)
    open_to_all = browse(memory)
    shown = 0
    paths = [(f"/api/v1{read.path}", QUERIES.get(read.path, {})) for read in READS]
    paths += [(page.path, QUERIES.get(page.path, {})) for page in PAGES]
    paths += [("/api/v1/job", {**MAIL, "id": id}) for id in JOBS]
    paths += [("/job", {**MAIL, "id": id}) for id in JOBS]
    paths += [("/jobs", {**MAIL, "state": "failed"}), ("/search", {"q": "done"})]
    for path, query in paths:
        assert MARK not in (await browser.get(path, **query)).text, path
        shown += MARK in (await open_to_all.get(path, **query)).text
    assert shown > 15, "the mark is in most responses of a dashboard that hides nothing"


@pytest.mark.parametrize("reason", ["unknown", "unfit"])
async def test_a_deferred_job_says_so_without_its_arguments(
    memory: Store, browse: Make, reason: DeferReason
) -> None:
    queue = QueueName("acme", "post")
    await memory.put([JobSpec(queue=queue, id="put-off", name="send", payload=b"[[],{}]")])
    claim = Claim(queues=(queue,), limit=1, lease_ms=1000)
    (lease,) = (await memory.settle([], worker="w", call="1", then=claim)).leases
    outcome = Defer(
        queue=queue, id=lease.id, token=lease.token, delay_ms=30_000, reason=reason, text=MARK
    )
    await memory.settle([outcome], worker="w", call="2")
    for hide in (True, False):
        browser = browse(memory, hide_payloads=hide)
        for path, id in (("/job", "put-off"), ("/jobs", None), ("/api/v1/job", "put-off")):
            text = (await browser.get(path, tenant="acme", queue="post", id=id)).text
            assert "deferred, because" in text, path
            assert (MARK in text) is (reason == "unfit" and not hide), path


async def test_a_hidden_payload_cannot_be_downloaded(memory: Store, browse: Make) -> None:
    query = {**MAIL, "id": "done"}
    for part in ("arguments", "result", "progress", "saved"):
        assert (await browse(memory).get("/payload", **query, part=part)).status_code == 200
        reply = await browse(memory, hide_payloads=True).get("/payload", **query, part=part)
        assert reply.status_code == 403
        assert MARK not in reply.text
    assert (await browse(memory).get("/payload", **query, part="worker")).status_code == 404


async def test_a_live_stream_hides_payloads_too(memory: Store, browse: Make) -> None:
    for hide in (True, False):
        browser = browse(memory, hide_payloads=hide)
        reply = await browser.get("/live", **MAIL, id="done")  # it has ended: so does the stream
        assert "event: job" in reply.text
        assert (MARK in reply.text) is not hide


async def test_a_hidden_progress_has_no_percentage(memory: Store, browse: Make) -> None:
    shown = await browse(memory).read("job", **MAIL, id="done")
    assert shown["percent"] == 75
    hidden = await browse(memory, hide_payloads=True).read("job", **MAIL, id="done")
    assert hidden["percent"] is None


async def test_a_filter_does_not_find_out_a_hidden_message(memory: Store, browse: Make) -> None:
    open_to_all, browser = browse(memory), browse(memory, hide_payloads=True)
    for error in (f"ValueError: {MARK[0]}*", f"*{MARK[:9]}*", f"ValueError: {MARK}"):
        query = {**MAIL, "state": "failed", "error": error}
        assert (await open_to_all.read("jobs", **query))["jobs"], error
        assert not (await browser.read("jobs", **query))["jobs"], error
        assert (await browser.read("jobs/preview", **query))["matched"] == 0, error
        assert (await browser.act("jobs.rerun", **query))["changed"] == 0, error
    for error in ("ValueError", "Value*", "error", "feed1234beef"):
        assert (await browser.read("jobs", **MAIL, error=error))["jobs"], error
