"""Hostile names and payloads are only text, on every page."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from jobq.core.values import printable
from jobq.web import app
from tests.web.browser.hostile import NAMES, Hostile
from tests.web.browser.live import Live
from tests.web.browser.tab import Tab

ALL = ("/", "/jobs", "/dead", "/schedules", "/flows", "/workers", "/tenants")
"""Pages that list the names of all queues, schedules, workers and tenants."""

Opened = tuple[list[Hostile], Tab]


@pytest.fixture(scope="module")
def hostile(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Opened]:
    """A store full of hostile names, and a tab of a phone's width on its dashboard."""
    url = f"sqlite:///{tmp_path_factory.mktemp('hostile')}/jobs.db"
    with Live(url) as live:
        queues = [Hostile(live, number, name) for number, name in enumerate(NAMES)]
        context = browser.new_context(viewport={"width": 360, "height": 740})
        try:
            yield queues, Tab(context, live.serve(app(url)))
        finally:
            context.close()


def check(tab: Tab) -> None:
    """Nothing has run, nothing was made of a text, and nothing is wider than the screen."""
    tab.check()
    assert tab.find("img, iframe, object, embed").count() == 0
    assert tab.find("[onerror], [onload], [onfocus], a[href^=javascript]").count() == 0
    assert tab.overflow() <= 0, f"{tab.page.url} is wider than the screen"


@pytest.mark.parametrize("number", range(len(NAMES)))
def test_a_hostile_name_is_only_text_on_its_pages(hostile: Opened, number: int) -> None:
    queues, tab = hostile
    one = queues[number]
    shown = printable.one_line(one.name)[:40]
    for path, query in one.pages():
        tab.open(path, **query)
        check(tab)
        everything = tab.page.evaluate(
            "[...document.querySelectorAll('main *')].map(e => [...e.childNodes]"
            ".filter(n => n.nodeType === 3).map(n => n.data).join('') + (e.title ?? '')"
            " + (e.value ?? '')).join('\\n')"
        )
        assert shown in everything, f"{path} does not show the name"


@pytest.mark.parametrize("path", ALL)
def test_lists_of_hostile_names_are_only_text(hostile: Opened, path: str) -> None:
    _queues, tab = hostile
    tab.open(path)
    check(tab)
    if path != "/jobs":
        assert "<img src=x" in tab.text() or path == "/flows"


def test_links_to_hostile_names_lead_to_them(hostile: Opened) -> None:
    queues, tab = hostile
    for one in queues:
        tab.open("/jobs", **one.where, state="failed")
        tab.find("tbody tr a").first.click()
        tab.page.wait_for_url("**/job?*")
        assert printable.one_line(one.name)[:30] in tab.find("h1").inner_text()
        check(tab)
