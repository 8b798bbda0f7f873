"""Every page on a live store: no error in the console, nothing serious for axe, from 360 px up."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.waiting import wait_until
from tests.web.browser.conftest import Opens
from tests.web.browser.shop import Shop
from tests.web.browser.tab import Tab

BILLING = {"tenant": "default", "queue": "billing"}
PAGES: dict[str, tuple[str, dict[str, str], str]] = {
    "overview": ("/", {}, "billing"),
    "queue": ("/queue", BILLING, "billing"),
    "jobs": ("/jobs", BILLING, "charge"),
    "failed jobs": ("/jobs", BILLING | {"state": "failed"}, "ValueError"),
    "completed job": ("/job", {"tenant": "default", "queue": "mail", "id": "mailed"}, "mailed"),
    "failed job": ("/job", BILLING | {"id": "declined"}, "card of 'ann' was declined"),
    "delayed job": ("/job", BILLING | {"id": "later"}, "later"),
    "dead letters": ("/dead", {}, "ValueError"),
    "schedules": ("/schedules", {}, "nightly"),
    "flows": ("/flows", {}, "order-7"),
    "flow": ("/flow", BILLING | {"id": "order-7"}, "order-7"),
    "workers": ("/workers", {}, "shop-1"),
    "worker": ("/worker", {"name": "shop-1"}, "shop-1"),
    "tenants": ("/tenants", {}, "acme"),
    "search": ("/search", {"q": "declined"}, "declined"),
}
"""By name: path, query, and a text that the page shows."""


def findings(tab: Tab, **options: Any) -> list[str]:
    """What axe finds serious or critical, with the elements that it means."""
    from axe_playwright_python.sync_playwright import Axe

    found = Axe().run(tab.page, options={"resultTypes": ["violations"], **options}).response
    return [
        f"{each['id']}: {node['html'][:200]} {node['failureSummary']}"
        for each in found["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_live_accessible_and_fits_a_phone(tab: Opens, name: str) -> None:
    path, query, text = PAGES[name]
    opened = tab(path, **query)
    assert text in opened.text()
    assert opened.find("h1").count() == 1
    if (live := opened.find("[data-live-source]")).count():
        live.get_by_text(re.compile("^(live|ended)$")).wait_for()
    assert findings(opened) == []
    opened.page.emulate_media(color_scheme="dark")
    contrast = {"type": "rule", "values": ["color-contrast"]}
    assert findings(opened, runOnly=contrast) == [], "in dark"
    opened.page.set_viewport_size({"width": 360, "height": 740})
    wait_until(lambda: opened.overflow() <= 0, "the page to be as narrow as a phone")


@pytest.mark.parametrize("name", PAGES)
def test_a_page_can_be_read_without_javascript(tab: Opens, name: str) -> None:
    path, query, text = PAGES[name]
    opened = tab(path, how={"java_script_enabled": False}, **query)
    assert text in opened.find("main").inner_text()


def test_the_theme_can_be_switched_and_stays(tab: Opens) -> None:
    opened = tab("/", how={"color_scheme": "light"})
    background = "getComputedStyle(document.body).backgroundColor"
    light = opened.page.evaluate(background)
    for _ in range(2):  # system, light, dark
        opened.find("[data-switches-theme]").click()
    dark = opened.page.evaluate(background)
    assert dark != light
    opened.open("/workers")
    assert opened.page.evaluate(background) == dark


def test_a_page_that_does_not_exist_is_a_page_too(tab: Opens, shop: Shop) -> None:
    for path, query in (("/nothing", {}), ("/job", BILLING | {"id": "nobody"})):
        opened = tab(path, **query)
        assert opened.find("h1").count() == 1
        assert findings(opened) == []
        assert [each[:3] for each in opened.problems if not each.startswith("error")] == ["404"]
        opened.problems.clear()
