"""Who may do what: every route × every scope, made from the tables of routes."""

from __future__ import annotations

from collections.abc import Mapping
from html import unescape
from itertools import combinations
from typing import Any

import httpx
import pytest
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from jobq.access.principal import SCOPES, Principal, Scope
from jobq.access.table import ROUTES
from jobq.core.records.jobs import QueueName
from jobq.stores.base import Store
from jobq.web import api
from jobq.web.data.actions import ACTIONS
from jobq.web.data.reads import READS
from jobq.web.pages import PAGES
from jobq.web.site import _routes
from tests.web.conftest import Make
from tests.web.kit import MARK, Browser

MAIL = {"tenant": "acme", "queue": "mail"}
LATER = {**MAIL, "id": "later"}
NIGHTLY = {**MAIL, "id": "nightly"}
BULK = {**MAIL, "state": "cancelled"}

BODIES: dict[str, dict[str, Any]] = {
    "queue.pause": MAIL,
    "queue.resume": MAIL,
    "queue.hold": {**MAIL, "seconds": 1},
    "queue.release-hold": MAIL,
    "queue.limits": {**MAIL, "limit": 5},
    "queue.clear": MAIL,
    "queue.purge": {**MAIL, "state": "cancelled"},
    "queue.release-lock": {**MAIL, "lock": "lock"},
    "job.cancel": LATER,
    "job.rerun": LATER,
    "job.revive": LATER,
    "job.promote": LATER,
    "job.reprioritise": {**LATER, "priority": 1},
    "job.reschedule": {**LATER, "delay_s": 60},
    "job.update": {**LATER, "arguments": "{}"},
    "job.signal": {**LATER, "name": "go"},
    "job.remove": LATER,
    "flow.rerun": {**MAIL, "id": "whole"},
    "jobs.rerun": BULK,
    "jobs.cancel": {**MAIL, "state": "blocked"},
    "jobs.promote": {**MAIL, "state": "delayed"},
    "jobs.remove": BULK,
    "schedule.run": NIGHTLY,
    "schedule.pause": NIGHTLY,
    "schedule.resume": NIGHTLY,
    "schedule.remove": NIGHTLY,
    "worker.drain": {"name": "acme:w"},
    "worker.resume": {"name": "acme:w"},
    "worker.stop": {"name": "acme:w"},
    "worker.stop-now": {"name": "acme:w"},
    "worker.concurrency": {"name": "acme:w", "concurrency": 3},
}
"""A body for every action. A new action without one fails the first test."""

QUERIES: dict[str, dict[str, str]] = {
    "/queue": MAIL,
    "/queue/minutes": MAIL,
    "/queue/events": MAIL,
    "/jobs": MAIL,
    "/jobs/preview": MAIL,
    "/job": {**MAIL, "id": "done"},
    "/flow": {**MAIL, "id": "whole"},
    "/worker": {"name": "acme:w"},
    "/payload": {**MAIL, "id": "done", "part": "result"},
    "/live": {**MAIL, "id": "done"},
}
"""The queries of reads and pages that need one."""


def test_every_action_has_a_row_in_this_matrix() -> None:
    assert BODIES.keys() == ACTIONS.keys()


def _as(browse: Make, store: Store, tenant: str | None, *scopes: Scope) -> Browser:
    principal = Principal(subject="ann", tenant=tenant, scopes=frozenset(scopes))
    browser: Browser = browse(store, sign_in=lambda request: principal)
    return browser


async def _state_of(store: Store, tenant: str) -> tuple[object, ...]:
    queue = QueueName(tenant, "mail")
    return (
        await store.queues(tenant),
        await store.count(queue),
        await store.list_schedules(queue),
        (await store.read_events(queue, after="0")).position,
        [worker.draining for worker in await store.workers(queue)],
    )


SUBSETS = [frozenset(c) for n in range(5) for c in combinations(sorted(SCOPES), n)]


def _served() -> set[str]:
    """Every route of the dashboard, as its router has them."""
    found = set()
    for route in _routes():
        if isinstance(route, Mount):
            found.add(f"GET {route.path}")
        elif isinstance(route, Route):
            found |= {f"{method} {route.path}" for method in (route.methods or set()) - {"HEAD"}}
    return found


def test_every_route_has_a_row_in_the_table_of_access() -> None:
    assert _served() == set(ROUTES)


def test_a_route_without_a_row_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(ROUTES, "GET /payload")
    with pytest.raises(KeyError, match="GET /payload"):
        _routes()


def test_a_new_route_without_a_row_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    async def invented(request: Request) -> Response:
        raise AssertionError("nobody may get here")

    route = Route("/api/v1/invented", invented, methods=["POST"])
    monkeypatch.setattr(api, "routes", lambda: [route])
    with pytest.raises(KeyError, match="POST /api/v1/invented"):
        _routes()


@pytest.mark.parametrize("name", sorted(ROUTES))
async def test_every_set_of_scopes_may_use_the_routes_of_the_table_and_no_others(
    memory: Store, browse: Make, name: str
) -> None:
    """403 is the only refusal of a scope: with enough scopes, nothing behind the route needs more.
    A refused action changes nothing."""
    method, _, path = name.partition(" ")
    before = await _state_of(memory, "acme")
    refused = [scopes for scopes in SUBSETS if not _enough(name, scopes)]
    for scopes in refused:
        reply = await _ask(_as(browse, memory, "acme", *scopes), method, path)
        assert reply.status_code == 403, (sorted(scopes), reply.text[:500])
        assert f"needs the scope {ROUTES[name].in_words()}" in unescape(reply.text)
    assert await _state_of(memory, "acme") == before
    for scopes in set(SUBSETS) - set(refused):
        reply = await _ask(_as(browse, memory, "acme", *scopes), method, path)
        expected = 401 if name == "POST /sign-in" else 403  # it comes without a token
        assert (reply.status_code == expected) is (name == "POST /sign-in"), reply.text[:500]


def _enough(name: str, scopes: frozenset[Scope]) -> bool:
    return "admin" in scopes or all(needed & scopes for needed in ROUTES[name].needs)


async def _ask(browser: Browser, method: str, path: str) -> httpx.Response:
    if path.startswith("/api/v1/") and method == "POST":
        below = path.removeprefix("/api/v1/")
        return await browser.post(below, **BODIES[below.replace("/", ".")])
    if method == "POST":
        return await browser.http.post(path, data={"csrf_token": await browser.csrf_token()})
    query = QUERIES.get(path.removeprefix("/api/v1"), {})
    return await browser.get(f"{path}/htmx.min.js" if path == "/static" else path, **query)


async def test_an_action_in_read_only_mode_is_refused_even_to_an_admin(
    memory: Store, browse: Make
) -> None:
    before = await _state_of(memory, "acme")
    browser = browse(memory, read_only=True)
    for name in ACTIONS:
        reply = await browser.post(_path(name), **BODIES[name])
        assert reply.status_code == 403, name
        assert "read-only" in reply.json()["detail"], name
    assert await _state_of(memory, "acme") == before


async def test_an_action_on_another_tenant_changes_nothing_there(
    memory: Store, browse: Make
) -> None:
    before = await _state_of(memory, "other")
    browser = _as(browse, memory, "acme", "admin")
    for name in ACTIONS:
        reply = await browser.post(_path(name), **_of_other(BODIES[name]))
        assert reply.status_code == 404, (name, reply.text)
    assert await _state_of(memory, "other") == before


def _path(name: str) -> str:
    return ACTIONS[name].path.lstrip("/")


def _of_other(fields: Mapping[str, Any]) -> dict[str, Any]:
    return {k: v.replace("acme", "other") if isinstance(v, str) else v for k, v in fields.items()}


async def test_reads_and_pages_need_a_scope_and_show_nothing_of_another_tenant(
    memory: Store, browse: Make
) -> None:
    producer = _as(browse, memory, "acme", "produce")
    reader = _as(browse, memory, "acme", "read")
    paths = [(f"/api/v1{read.path}", QUERIES.get(read.path, {})) for read in READS]
    paths += [(page.path, QUERIES.get(page.path, {})) for page in PAGES]
    for path, query in paths:
        assert (await producer.get(path, **query)).status_code == 403, path
        mine = await reader.get(path, **query)
        assert mine.status_code == 200, (path, mine.text[:500])
        assert "other:w" not in mine.text, path
        assert "tenant=other" not in mine.text, path
        theirs = _of_other(query)
        foreign = await reader.get(path, **(theirs or {"tenant": "other"}))
        assert MARK not in foreign.text, path
        if theirs:
            assert foreign.status_code == 404, (path, foreign.text[:500])


async def test_buttons_are_shown_only_to_those_who_may_press_them(
    memory: Store, browse: Make
) -> None:
    async def posts(browser: Browser) -> int:
        page: httpx.Response = await browser.get("/queue", **MAIL)
        return page.text.count("/api/v1/queue/pause")

    assert await posts(_as(browse, memory, "acme", "admin"))
    assert not await posts(_as(browse, memory, "acme", "read"))
    assert not await posts(browse(memory, read_only=True))


async def test_an_event_names_the_person_who_acted(memory: Store, browse: Make) -> None:
    await _as(browse, memory, "acme", "admin").act("queue.pause", **MAIL)
    events = (await memory.read_events(QueueName("acme", "mail"), after="0")).events
    assert events[-1].actor == "ann (dashboard)"
