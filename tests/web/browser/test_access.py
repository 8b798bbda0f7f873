"""Roles, read-only mode and CSRF: buttons are absent, and the request behind them is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from jobq.web import app
from jobq.web.data.actions import ACTIONS
from jobq.web.tokens import TokenFile
from tests.web.browser.conftest import Opens
from tests.web.browser.shop import Shop
from tests.web.browser.tab import Tab
from tests.web.browser.test_pages import PAGES

TOKENS = {
    "viewer": ("view-0123456789abcdef", "read"),
    "producer": ("make-0123456789abcdef", "read,produce"),
    "admin": ("rule-0123456789abcdef", "admin"),
    "tenant": ("acme-0123456789abcdef", "admin acme"),
}
BUTTONS = "main form[hx-post] button, main [data-bulk-of], main [data-opens]"
"""Everything that changes something, on any page."""

POST = """async ([path, body, token]) => {
    const headers = {"Content-Type": "application/json"};
    if (token !== null) headers["X-CSRF-Token"] = token;
    const reply = await fetch(path, {method: "POST", headers, body: JSON.stringify(body)});
    return reply.status;
}"""


@pytest.fixture(scope="module")
def signed(shop: Shop, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dashboard that people sign in to."""
    file: Path = tmp_path_factory.mktemp("tokens") / "tokens"
    file.write_text("".join(f"{token} {name} {rest}\n" for name, (token, rest) in TOKENS.items()))
    file.chmod(0o600)
    return shop.live.serve(app(shop.live.url, sign_in=TokenFile(file)))


def sign_in(opened: Tab, who: str) -> Tab:
    """Sign in on the page for it, which every other page leads to."""
    opened.open("/")
    opened.find("input[type=password]").fill(TOKENS[who][0])
    opened.click("Sign in")
    opened.find("nav[aria-label=Pages]").wait_for()
    opened.problems.clear()
    return opened


def buttons(opened: Tab) -> set[str]:
    """The names of all buttons that change something, over all pages."""
    found: set[str] = set()
    for path, query, _ in PAGES.values():
        opened.open(path, **query)
        found |= set(opened.find(BUTTONS).all_inner_texts())
    return found


def posted(opened: Tab, action: str, body: dict[str, Any], token: str | None = None) -> int:
    """Send the request of an action as a script of the page would, and return its status."""
    status: int = opened.page.evaluate(POST, [f"/api/v1{ACTIONS[action].path}", body, token])
    opened.problems.clear()  # the browser notes each refusal
    return status


def csrf_token(opened: Tab) -> str:
    headers: str = opened.page.evaluate("document.body.getAttribute('hx-headers')")
    return headers.split('"')[3]


def test_read_only_pages_have_no_buttons_and_every_request_is_refused(
    tab: Opens, shop: Shop
) -> None:
    opened = tab(None, at=shop.read_only)
    assert buttons(opened) == set()
    assert "Read-only" in opened.find("header.side").inner_text()
    body = {"tenant": "default", "queue": "billing", "id": "later", "name": "shop-1"}
    for action in ACTIONS:
        assert posted(opened, action, body, csrf_token(opened)) == 403, action


def test_each_role_has_the_buttons_that_it_may_use(tab: Opens, signed: str) -> None:
    found = {who: buttons(sign_in(tab(None, at=signed), who)) for who in ("viewer", "producer")}
    assert found["viewer"] == set()
    assert {"Run again", "Cancel", "Rerun", "Run now"} <= found["producer"]
    assert not found["producer"] & {"Pause", "Drain", "Stop", "Purge", "Remove…"}
    opened = sign_in(tab(None, at=signed), "producer")
    where = {"tenant": "default", "queue": "billing"}
    assert posted(opened, "queue.pause", where, csrf_token(opened)) == 403
    assert posted(opened, "worker.stop", {"name": "shop-1"}, csrf_token(opened)) == 403
    assert posted(opened, "jobs.remove", where | {"state": "failed"}, csrf_token(opened)) == 403


def test_a_tenant_sees_and_changes_only_its_own(tab: Opens, signed: str) -> None:
    opened = sign_in(tab(None, at=signed), "tenant")
    for path in ("/", "/dead", "/schedules", "/flows", "/workers", "/tenants"):
        opened.open(path)
        shown = opened.text()
        assert "default" not in shown, path
        assert "hourly" not in shown, path
    opened.open("/tenants")
    assert opened.find("tbody tr").count() == 1
    opened.open("/queue", tenant="default", queue="billing")
    assert opened.problems[0].startswith("404")
    token = csrf_token(opened.open("/"))
    where = {"tenant": "default", "queue": "billing"}
    assert posted(opened, "queue.pause", where, token) == 404
    assert posted(opened, "job.cancel", where | {"id": "later"}, token) == 404


def test_nobody_gets_in_without_a_token_or_with_a_wrong_one(tab: Opens, signed: str) -> None:
    opened = tab("/dead", at=signed)
    assert opened.find("input[type=password]").is_visible()
    assert "ValueError" not in opened.page.content()
    opened.find("input[type=password]").fill("not a token at all")
    opened.click("Sign in")
    opened.find("[role=alert]").wait_for()
    opened.problems.clear()


def test_signing_out_ends_the_session(tab: Opens, signed: str) -> None:
    opened = sign_in(tab(None, at=signed), "admin")
    opened.click("Sign out")
    opened.find("input[type=password]").wait_for()
    opened.open("/dead")
    assert opened.find("input[type=password]").is_visible()
    opened.problems.clear()


def test_a_request_needs_the_csrf_token_of_its_page(tab: Opens, shop: Shop) -> None:
    opened = tab("/")
    where = {"tenant": "default", "queue": "billing"}
    right = csrf_token(opened)
    wrong = right[:-1] + ("0" if right[-1] != "0" else "1")
    assert posted(opened, "queue.pause", where, None) == 403
    assert posted(opened, "queue.pause", where, wrong) == 403
    assert posted(opened, "queue.pause", where, right) == 200
    assert posted(opened, "queue.resume", where, right) == 200


@pytest.fixture
def elsewhere(shop: Shop) -> str:
    """A page of another site that posts a form to the dashboard."""
    from starlette.applications import Starlette
    from starlette.responses import HTMLResponse
    from starlette.routing import Route

    async def evil(request: Any) -> HTMLResponse:
        target = f"{shop.address}/api/v1/queue/pause"
        return HTMLResponse(
            f"<form method=post action='{target}'><input name=tenant value=default>"
            "<input name=queue value=billing><button>win</button></form>"
        )

    return shop.live.serve(Starlette(routes=[Route("/", evil)]))


def test_a_form_of_another_site_is_refused(tab: Opens, shop: Shop, elsewhere: str) -> None:
    tab("/")  # the reader has the dashboard open
    opened = tab("/", at=elsewhere)
    opened.click("win")
    opened.page.wait_for_url(f"{shop.address}/**")
    assert any(each.startswith("403") for each in opened.problems), opened.problems
    assert shop.live.run(shop.billing.stats()).paused is False
    opened.problems.clear()
    opened.requests.clear()
