"""Live streams: one reader for all tabs, what they are told, and when they end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from jobq.access.principal import SCOPES, Principal
from jobq.core.records.jobs import Claim, Complete, JobKey, JobSpec, QueueName
from jobq.stores.base import Store
from jobq.web.feeds import Hub, Message, Tab, _stream
from jobq.web.site import Dashboard
from tests.waiting import until
from tests.web.conftest import Make
from tests.web.kit import fill

MAIL = {"tenant": "acme", "queue": "mail"}
QUEUE = QueueName("acme", "mail")
SECONDS = 30.0


class Stream:
    """What a browser has received of a stream so far."""

    def __init__(self) -> None:
        self.status = 0
        self.text = ""
        self.leave = asyncio.Event()
        self.over = False

    @property
    def events(self) -> list[tuple[str, Any]]:
        """Kinds and data, in order."""
        found = []
        for block in self.text.split("\n\n"):
            lines = dict(line.split(": ", 1) for line in block.splitlines() if ": " in line)
            if "event" in lines:
                found.append((lines["event"], json.loads(lines["data"])))
        return found


@asynccontextmanager
async def streaming(dashboard: Dashboard, query: str) -> AsyncIterator[Stream]:
    """An open stream. httpx's ASGI transport waits for the end of a response, so this is ASGI."""
    stream = Stream()
    asked = False

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if asked:
            await stream.leave.wait()
            return {"type": "http.disconnect"}
        asked = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            stream.status = message["status"]
        else:
            stream.text += message.get("body", b"").decode()
            stream.over = not message.get("more_body", False)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/live",
        "raw_path": b"/live",
        "query_string": query.encode(),
        "root_path": "",
        "headers": [(b"host", b"localhost")],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    task = asyncio.create_task(dashboard(scope, receive, send))
    try:
        await until(lambda: stream.status, "the response to begin")
        yield stream
    finally:
        stream.leave.set()
        async with asyncio.timeout(SECONDS):
            await task


def _dashboard(store: Store, **options: Any) -> Dashboard:
    settings: dict[str, Any] = {
        "sign_in": None,
        "read_only": False,
        "hide_payloads": False,
        "secret": None,
    }
    return Dashboard(store, **{**settings, **options})


def _spec(id: str) -> JobSpec:
    return JobSpec(queue=QUEUE, id=id, name="send", payload=b"[[],{}]")


async def test_two_tabs_of_a_queue_share_one_reader_and_both_are_told(store: Store) -> None:
    await store.put([_spec("1")])
    dashboard = _dashboard(store)
    query = "tenant=acme&queue=mail"
    async with streaming(dashboard, query) as one, streaming(dashboard, query) as two:
        for stream in (one, two):
            await until(lambda s=stream: s.events, "the first event")  # type: ignore[misc]
            assert stream.events[0][1]["counts"]["waiting"] == 1
        assert (dashboard._hub.tabs, dashboard._hub.readers) == (2, 1)
        await store.put([_spec("2")])
        for stream in (one, two):
            await until(
                lambda s=stream: s.events[-1][1]["counts"]["waiting"] == 2,  # type: ignore[misc]
                "the second job",
            )
    assert (dashboard._hub.tabs, dashboard._hub.readers) == (0, 0)


async def test_a_job_is_followed_until_it_has_ended(store: Store) -> None:
    await store.put([_spec("1")])
    dashboard = _dashboard(store)
    async with streaming(dashboard, "tenant=acme&queue=mail&id=1") as stream:
        await until(lambda: stream.events, "the first event")
        claim = Claim(queues=(QUEUE,), limit=1, lease_ms=60_000)
        (lease,) = (await store.settle([], worker="w", call="1", then=claim)).leases
        await until(lambda: stream.events[-1][1]["state"] == "active", "the start")
        complete = Complete(queue=QUEUE, id="1", token=lease.token, result=b"1")
        await store.settle([complete], worker="w", call="2")
        await until(lambda: stream.over, "the end of the stream")
    assert [kind for kind, _ in stream.events] == ["job", "job", "job", "end"]
    assert [data.get("state") for _, data in stream.events[:3]] == [
        "waiting",
        "active",
        "completed",
    ]


async def test_the_overview_is_told_of_each_queue(memory: Store) -> None:
    dashboard = _dashboard(memory)
    async with streaming(dashboard, "") as stream:
        await until(lambda: len(stream.events) >= 2, "both tenants")
        seen = {(data["tenant"], data["queue"]) for _, data in stream.events}
    assert {("acme", "mail"), ("other", "mail")} <= seen


async def test_a_stream_is_refused_like_its_page(memory: Store, browse: Make) -> None:
    reader = Principal(subject="ann", tenant="acme", scopes=frozenset({"read"}))
    browser = browse(memory, sign_in=lambda request: reader)
    for query, status in (
        ({"tenant": "other", "queue": "mail"}, 404),
        ({**MAIL, "id": "none"}, 404),
    ):
        assert (await browser.get("/live", **query)).status_code == status
    producer = Principal(subject="bob", tenant="acme", scopes=frozenset({"produce"}))
    refused = browse(memory, sign_in=lambda request: producer)
    assert (await refused.get("/live", **MAIL)).status_code == 403


async def test_a_stream_ends_when_its_reader_is_signed_out(memory: Store, monkeypatch: Any) -> None:
    monkeypatch.setattr("jobq.web.feeds.HEARTBEAT_S", 0.01)
    who: list[Principal] = [Principal(subject="ann", tenant=None, scopes=SCOPES)]
    dashboard = _dashboard(memory, sign_in=lambda request: who[0] if who else None)
    async with streaming(dashboard, "tenant=acme&queue=mail") as stream:
        await until(lambda: ": still here" in stream.text, "a heartbeat")
        assert not stream.over
        who.clear()
        await until(lambda: stream.over, "the end of the stream")


@pytest.mark.parametrize(
    "change", [{"tenant": "other"}, {"scopes": frozenset({"produce"})}], ids=["tenant", "scopes"]
)
async def test_a_stream_ends_when_the_rights_of_its_reader_change(
    memory: Store, monkeypatch: Any, change: dict[str, Any]
) -> None:
    monkeypatch.setattr("jobq.web.feeds.HEARTBEAT_S", 0.01)
    who = [Principal(subject="ann", tenant="acme", scopes=frozenset({"read"}))]
    dashboard = _dashboard(memory, sign_in=lambda request: who[0])
    async with streaming(dashboard, "tenant=acme&queue=mail") as stream:
        await until(lambda: ": still here" in stream.text, "a heartbeat")
        assert not stream.over
        who[0] = replace(who[0], **change)
        await until(lambda: stream.over, "the end of the stream")


async def test_tabs_that_come_at_once_are_counted_too(memory: Store, monkeypatch: Any) -> None:
    monkeypatch.setattr("jobq.web.feeds.MAX_TABS", 1)
    dashboard = _dashboard(memory)
    await dashboard.open()
    request: Any = None  # it is looked at later only
    one, two = (_stream(request, dashboard._hub, [QUEUE]) for _ in range(2))
    assert b"retry" in await anext(one)
    assert b"retry" in await anext(two)
    assert b"event: queue" in await anext(one)
    with pytest.raises(StopAsyncIteration):
        await anext(two)
    assert dashboard._hub.tabs == 1
    await one.aclose()  # type: ignore[attr-defined]
    await dashboard.aclose()


async def test_closing_the_dashboard_ends_its_streams(memory: Store) -> None:
    dashboard = _dashboard(memory)
    async with streaming(dashboard, "tenant=acme&queue=mail") as stream:
        await until(lambda: stream.events, "the first event")
        await dashboard.aclose()
        await until(lambda: stream.over, "the end of the stream")


async def test_a_slow_tab_keeps_a_bounded_number_of_messages() -> None:
    tab = Tab()
    for n in range(10_000):
        tab.tell(Message("queue", b"%d" % n))
    waiting = await tab.next(0)
    assert len(waiting) == 32
    assert waiting[-1].data == b"9999"
    assert await tab.next(0) == []


async def test_a_feed_goes_on_after_its_last_tab_was_replaced(memory: Store) -> None:
    dashboard = _dashboard(memory)
    await dashboard.open()
    hub: Hub = dashboard._hub
    async with hub.watching([QUEUE]) as first:
        assert await first.next(SECONDS)
        async with hub.watching([QUEUE]) as second:
            assert await second.next(SECONDS), "a new tab is told at once"
    assert hub.readers == 0
    async with hub.watching([JobKey(QUEUE, "none")]) as third:
        assert [m.event for m in await third.next(SECONDS)] == ["end"]


async def test_an_empty_store_has_a_stream_too(store: Store) -> None:
    dashboard = _dashboard(store)
    async with streaming(dashboard, "") as stream:
        assert stream.status == 200
        await fill(store)
