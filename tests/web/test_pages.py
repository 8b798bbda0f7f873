"""The dashboard's pages of queues and jobs, as the server sends them."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import unescape
from uuid import uuid4

import httpx
import pytest

from jobq.core.records.jobs import (
    Claim,
    Complete,
    Fail,
    Failure,
    JobSpec,
    Lease,
    LeaseRef,
    Note,
    QueueName,
    RetryData,
)
from jobq.core.records.queues import Limits, QueueConfig
from jobq.core.records.states import State
from jobq.core.rules.new_jobs import Checked
from jobq.core.values.codec import JSON
from jobq.stores import open_store
from jobq.stores.base import Store
from jobq.web import app

HOSTILE = "\"'><img src=x onerror=alert(1)>"
BILLING = QueueName("default", "billing")


class Site:
    """A dashboard on a store of its own."""

    def __init__(self, store: Store, client: httpx.AsyncClient) -> None:
        self.store = store
        self.client = client
        self._calls = 0

    async def get(self, path: str, **query: str) -> str:
        """The page at a path, which must be there."""
        reply = await self.client.get(path, params=query or None)
        assert reply.status_code == 200, reply.text
        return reply.text

    async def put(self, *ids: str, queue: QueueName = BILLING, **fields: object) -> None:
        """Store jobs of the task `charge`."""
        given = {"name": "charge", "payload": JSON.encode_call([], {"amount": 5}), **fields}
        await self.store.put([JobSpec(queue=queue, id=id, **given) for id in ids])  # type: ignore[arg-type]

    async def claim(self, queue: QueueName = BILLING, limit: int = 100) -> tuple[Lease, ...]:
        """Claim jobs as the worker w1."""
        self._calls += 1
        then = Claim(queues=(queue,), limit=limit, lease_ms=60_000)
        got = await self.store.settle([], worker="w1", call=f"c{self._calls}", then=then)
        return got.leases

    async def settle(self, *outcomes: Complete | Fail) -> None:
        """Settle runs of w1."""
        self._calls += 1
        await self.store.settle(outcomes, worker="w1", call=f"c{self._calls}")

    async def fail(self, *leases: Lease, message: str = "no reply") -> None:
        """Fail runs for good."""
        failure = Failure(
            reason="error", type="GatewayTimeout", message=message, traceback="File x\n" + message
        )
        outcomes = [Fail(queue=e.queue, id=e.id, token=e.token, failure=failure) for e in leases]
        await self.settle(*outcomes)


def links(html: str) -> list[str]:
    """The addresses that a page leads to."""
    return [unescape(each) for each in re.findall(r'href="([^"]*)"', html)]


def rows(html: str) -> list[str]:
    """The ids of the jobs that a list of jobs shows."""
    table = html[html.index("<tbody>") : html.index("</tbody>")] if "<tbody>" in html else ""
    return [
        unescape(each) for each in re.findall(r'href="[^"]*/job\?[^"]*" title="([^"]*)"', table)
    ]


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with dashboard() as made:
        yield made


@asynccontextmanager
async def dashboard(*, read_only: bool = False, hide_payloads: bool = False) -> AsyncIterator[Site]:
    store = open_store(f"memory://pages-{uuid4().hex}")
    await store.migrate()
    served = app(store, read_only=read_only, hide_payloads=hide_payloads)
    transport = httpx.ASGITransport(served, client=("127.0.0.1", 1))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        yield Site(store, client)
    await store.aclose()


# ── overview and queue ────────────────────────────────────────────────────────────────────────────


async def test_an_empty_store_teaches_how_to_submit_the_first_job(site: Site) -> None:
    assert "jq-ctl job submit" in await site.get("/")
    assert "jq-ctl job submit" in await site.get("/jobs")


async def test_the_overview_counts_waits_and_failures_of_each_queue(site: Site) -> None:
    await site.put("a", "b", "c")
    first, second = await site.claim(limit=2)
    await site.settle(Complete(queue=BILLING, id=first.id, token=first.token))
    await site.fail(second)
    html = await site.get("/")
    assert re.search(r'data-label="Waiting"><a [^>]*><span class="n-waiting">1</span>', html)
    assert re.search(r'data-label="Failed"><a [^>]*><span class="n-failed">1</span>', html)
    assert "1 completed and 1 failed in the last hour" in html
    assert "GatewayTimeout" in html
    assert "/queue?tenant=default&queue=billing" in links(html)


async def test_a_queue_page_shows_limits_holds_and_who_paused_it(site: Site) -> None:
    await site.store.declare(
        BILLING, QueueConfig(mode="keyed", limits=Limits(limit=7, key_limit=2))
    )
    await site.put("a", key="acme")
    await site.store.hold(BILLING, 60_000, "acme", actor="ann")
    await site.store.pause(BILLING, actor="ann")
    html = await site.get("/queue", tenant="default", queue="billing")
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", html))
    assert "At a time 7" in text
    assert "At a time per key 2" in text
    assert re.search(r"Key Ends Actions acme in \d+", text)
    assert "paused by ann" in text
    assert 'hx-post="/api/v1/queue/resume"' in html
    assert 'hx-post="/api/v1/queue/pause"' not in html


async def test_a_page_of_nothing_is_a_404_that_says_so(site: Site) -> None:
    await site.put("a")
    for path, query in (
        ("/queue", {"tenant": "default", "queue": "nowhere"}),
        ("/job", {"tenant": "default", "queue": "billing", "id": "nobody"}),
    ):
        reply = await site.client.get(path, params=query)
        assert reply.status_code == 404
        assert re.search("nowhere|nobody", reply.text)


# ── jobs ──────────────────────────────────────────────────────────────────────────────────────────


async def test_the_next_page_continues_where_the_last_one_ended(site: Site) -> None:
    ids = [f"job-{n:03}" for n in range(120)]
    await site.put(*ids)
    found: list[str] = []
    html = await site.get("/jobs", tenant="default", queue="billing", state="waiting")
    for _ in range(5):  # three pages of up to 50, and room for short ones
        found += rows(html)
        (following,) = re.findall(r'rel="next" href="([^"]*)"', html) or [None]
        if following is None:
            break
        html = await site.get(unescape(following))
    assert sorted(found) == ids


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"name": "ref*"}, {"r"}),
        ({"name": "charge"}, {"a", "b"}),
        ({"id": "b"}, {"b"}),
        ({"state": "delayed"}, {"b"}),
        ({"state": "waiting"}, {"a", "r"}),
        ({"created_after": "1h"}, {"a", "b", "r"}),
        ({"created_before": "1h"}, set()),
        ({"created_after": "2020-01-31T08:00"}, {"a", "b", "r"}),
    ],
)
async def test_filters_narrow_the_list(
    site: Site, query: dict[str, str], expected: set[str]
) -> None:
    await site.put("a")
    await site.put("b", delay_ms=60_000)
    await site.put("r", name="refund")
    html = await site.get("/jobs", tenant="default", queue="billing", **query)
    assert set(rows(html)) == expected


async def test_a_damaged_job_is_listed_as_damaged_beside_others(site: Site) -> None:
    await site.put("a")
    nan = RetryData(factor=math.nan)
    damaged = JobSpec(queue=BILLING, id="b", name="charge", payload=b"[[],{}]", retry=nan)
    await site.store.put(Checked([damaged]))  # past the check, which refuses it
    html = await site.get("/jobs", tenant="default", queue="billing")
    assert sorted(rows(html)) == ["a", "b"]
    assert "Unreadable" in html
    assert "cannot be read" in await site.get("/job", tenant="default", queue="billing", id="b")


async def test_a_wrong_filter_is_named_and_the_form_keeps_it(site: Site) -> None:
    await site.put("a")
    reply = await site.client.get(
        "/jobs", params={"tenant": "default", "queue": "billing", "created_after": "yesterday"}
    )
    assert reply.status_code == 400
    assert "neither a time such as" in reply.text
    assert 'value="yesterday"' in reply.text


async def test_a_bulk_action_shows_what_it_would_change_and_changes_nothing(site: Site) -> None:
    await site.put(*(f"job-{n}" for n in range(7)))
    query = {"tenant": "default", "queue": "billing", "part": "bulk", "verb": "cancel"}
    html = await site.get("/jobs", **query, state="waiting")
    assert "Cancel 7 jobs of billing?" in html
    assert '"state":"waiting"' in unescape(html)
    assert (await site.store.count(BILLING))[State.WAITING] == 7


async def test_a_bulk_action_that_would_ignore_a_filter_is_refused(site: Site) -> None:
    await site.put("a", "b")
    query = {"tenant": "default", "queue": "billing", "part": "bulk", "verb": "cancel"}
    html = await site.get("/jobs", **query, state="waiting", id="a")
    assert "takes no id" in html
    assert "data-bulk" not in html
    listed = await site.get("/jobs", tenant="default", queue="billing", state="waiting", id="a")
    assert "part=bulk" not in listed


async def test_only_actions_that_apply_to_the_chosen_state_are_offered(site: Site) -> None:
    await site.put("a", delay_ms=60_000)
    await site.put("b")
    await site.fail(*await site.claim())
    offered = {
        state: set(re.findall(r"verb=(\w+)", await site.get("/jobs", queue="billing", state=state)))
        for state in ("delayed", "failed")
    }
    assert offered == {
        "delayed": {"promote", "cancel", "remove"},
        "failed": {"rerun", "remove"},
    }
    assert "verb=" not in await site.get("/jobs", queue="billing")  # no state is chosen


# ── job ───────────────────────────────────────────────────────────────────────────────────────────


async def test_a_job_page_shows_its_values_its_log_and_what_happened(site: Site) -> None:
    await site.put("a", meta={"request": "req-1"})
    (lease,) = await site.claim()
    held = LeaseRef(lease.queue, lease.id, lease.token)
    await site.store.note(
        [Note(lease=held, progress=JSON.encode({"done": 3, "total": 4}), lines=("charging",))]
    )
    html = await site.get("/job", tenant="default", queue="billing", id="a")
    assert '<progress max="100" value="75.0"' in html
    assert "charging" in html
    assert "req-1" in html
    await site.fail(lease)
    html = await site.get("/job", tenant="default", queue="billing", id="a")
    assert "File x\nno reply" in unescape(html)
    order = [html.index(f"<span>{kind}</span>") for kind in ("accepted", "started", "failed")]
    assert order == sorted(order)
    assert 'hx-post="/api/v1/job/rerun"' in html
    assert 'hx-post="/api/v1/job/cancel"' not in html


async def test_a_large_argument_does_not_make_a_large_page(site: Site) -> None:
    await site.put("a", payload=JSON.encode_call(["x" * 3_000_000], {}))
    await site.put("b", payload=JSON.encode_call([["y"] * 400_000], {}))
    for id in ("a", "b"):
        html = await site.get("/job", tenant="default", queue="billing", id=id)
        assert len(html) < 60_000
        assert "MB" in html
        assert f"/payload?part=arguments&tenant=default&queue=billing&id={id}" in links(html)
    assert len(await site.get("/jobs", tenant="default", queue="billing")) < 60_000


async def test_search_opens_a_single_hit_and_lists_several(site: Site) -> None:
    await site.put("a")
    await site.put("a", queue=QueueName("default", "bills"))
    await site.put("only")
    hit = await site.client.get("/search", params={"q": " only "})
    assert hit.headers["location"] == "/job?tenant=default&queue=billing&id=only"
    queue = await site.client.get("/search", params={"q": "LLING"})
    assert queue.headers["location"] == "/queue?tenant=default&queue=billing"
    several = await site.get("/search", q="a")
    assert several.count("/job?") == 2
    assert "Nothing found" in await site.get("/search", q="nobody")


# ── what people write ─────────────────────────────────────────────────────────────────────────────


async def test_no_name_or_value_breaks_out_of_a_page(site: Site) -> None:
    queue = QueueName("default", HOSTILE)
    await site.put(
        HOSTILE,
        queue=queue,
        name=HOSTILE,
        key=HOSTILE,
        meta={"note": HOSTILE},
        payload=JSON.encode_call([HOSTILE], {}),
    )
    await site.store.hold(queue, 60_000, "other" + HOSTILE, actor=HOSTILE)
    (lease,) = await site.claim(queue)
    held = LeaseRef(lease.queue, lease.id, lease.token)
    await site.store.note([Note(lease=held, progress=JSON.encode(HOSTILE), lines=(HOSTILE,))])
    active = await site.get("/job", tenant="default", queue=HOSTILE, id=HOSTILE)
    await site.fail(lease, message=HOSTILE)
    named = {"tenant": "default", "queue": HOSTILE}
    pages = [
        active,
        await site.get("/"),
        await site.get("/queue", **named),
        await site.get("/jobs", **named, key=HOSTILE, name=HOSTILE, error=HOSTILE),
        await site.get("/jobs", **named, state="failed"),
        await site.get("/jobs", **named, state="failed", part="bulk", verb="rerun"),
        await site.get("/job", **named, id=HOSTILE),
        await site.get("/search", q=HOSTILE),
        await site.get("/search", q=HOSTILE + "?"),
    ]
    for html in pages:
        assert "<img" not in html
        assert HOSTILE in unescape(html)


async def test_every_link_of_a_page_leads_to_a_page(site: Site) -> None:
    queue = QueueName("default", "a/b?c=d&e#f%41+ü")
    await site.put("x/../y?z", queue=queue, key="k&k=1")
    html = await site.get("/jobs", tenant="default", queue=queue.queue)
    (job,) = [each for each in links(html) if each.startswith("/job?")]
    assert "x/../y?z" in unescape(await site.get(job))
    (found,) = {each for each in links(html) if each.startswith("/queue?")}
    assert queue.queue in unescape(await site.get(found))


async def test_a_read_only_dashboard_has_no_button_that_acts() -> None:
    async with dashboard(read_only=True) as site:
        await site.put("a", delay_ms=60_000)
        named = {"tenant": "default", "queue": "billing"}
        for html in (
            await site.get("/queue", **named),
            await site.get("/jobs", **named, state="delayed"),
            await site.get("/job", **named, id="a"),
        ):
            assert "hx-post" not in html
            assert "verb=" not in html
            assert "Read-only" in html


async def test_hidden_payloads_are_on_no_page() -> None:
    async with dashboard(hide_payloads=True) as site:
        secret = "5ecret"
        await site.put("a", payload=JSON.encode_call([secret], {}), meta={"m": secret})
        (lease,) = await site.claim()
        held = LeaseRef(lease.queue, lease.id, lease.token)
        await site.store.note([Note(lease=held, progress=JSON.encode(secret), lines=(secret,))])
        named = {"tenant": "default", "queue": "billing"}
        active = await site.get("/job", **named, id="a")
        await site.fail(lease, message=secret)
        for html in (
            active,
            await site.get("/"),
            await site.get("/queue", **named),
            await site.get("/jobs", **named),
            await site.get("/job", **named, id="a"),
            await site.get("/jobs", **named, state="failed", part="bulk", verb="rerun"),
        ):
            assert secret not in html
