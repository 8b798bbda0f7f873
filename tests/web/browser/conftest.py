"""One Chromium, and a dashboard on a live store with real workers, for the tests of a file.

Playwright runs an event loop as long as it is open, and tests of other files need their own. So it
is closed at the end of each file.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.web.browser.shop import Shop, opened_shop
from tests.web.browser.tab import Tab

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)

Opens = Callable[..., Tab]
"""Opens a tab: `tab("/dead", queue="mail")`, with options of a browser context as `how`."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium. Its tests are skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if CHROMIUM is None:
        pytest.skip("needs chromium in the PATH")
    with playwright.sync_playwright() as started:
        # Root may not use Chromium's sandbox; the pages are our own.
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def shop(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shop]:
    """A store with jobs in all states, two workers, and its dashboards."""
    folder: Path = tmp_path_factory.mktemp("shop")
    with opened_shop(f"sqlite:///{folder}/jobs.db") as shop:
        yield shop


@pytest.fixture
def tab(browser: Any, shop: Shop) -> Iterator[Opens]:
    """Opens tabs. When the test ends, nothing may have gone wrong in any of them."""
    with ExitStack() as stack:

        def opens(
            path: str | None = "/", *, at: str | None = None, how: Any = None, **query: object
        ) -> Tab:
            options = {"viewport": {"width": 1280, "height": 900}} | (how or {})
            context = browser.new_context(**options)
            stack.callback(context.close)
            made = Tab(context, at or shop.address)
            stack.callback(made.close)
            return made if path is None else made.open(path, **query)

        yield opens
