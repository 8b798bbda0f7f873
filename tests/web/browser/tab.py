"""A tab of the browser that remembers everything that goes wrong in it."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import urlencode, urlsplit

TIMEOUT_MS = 20_000
"""How long Playwright waits for an element, on a loaded machine."""


class Tab:
    """A page of the dashboard. `close` checks that nothing went wrong."""

    def __init__(self, context: Any, address: str) -> None:
        self.address = address
        self.page = context.new_page()
        self.page.set_default_timeout(TIMEOUT_MS)
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("dialog", self._dialog)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("response", self._answered)

    def _said(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"{message.type}: {message.text}")

    def _dialog(self, dialog: Any) -> None:
        self.problems.append(f"a script opened a dialog: {dialog.message}")
        dialog.dismiss()

    def _answered(self, response: Any) -> None:
        if response.status >= 400:
            self.problems.append(f"{response.status}: {response.url}")

    def open(self, path: str = "/", **query: object) -> Tab:
        """Go to a page of the dashboard."""
        given = urlencode({key: str(value) for key, value in query.items()})
        self.page.goto(f"{self.address}{path}" + (f"?{given}" if given else ""))
        return self

    # ── looking ───────────────────────────────────────────────────────────────────────────────────

    def text(self) -> str:
        """All text of the page, as a reader sees it."""
        return str(self.page.locator("main").inner_text())

    def find(self, selector: str, **how: Any) -> Any:
        """Elements of the page."""
        return self.page.locator(selector, **how)

    def row(self, text: str) -> Any:
        """The row of a table that contains a text."""
        return self.page.locator("tbody tr", has_text=re.compile(re.escape(text)))

    def overflow(self) -> int:
        """Pixels that the page is wider than the window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - innerWidth"))

    def pwned(self) -> object:
        """What a script that broke out of its text has left."""
        return self.page.evaluate("window.__pwned")

    # ── acting ────────────────────────────────────────────────────────────────────────────────────

    def click(self, label: str, within: Any = None) -> None:
        """Press a button."""
        (within or self.page).get_by_role("button", name=label, exact=True).first.click()

    def agree(self, label: str) -> None:
        """Press a button of the dialog that is open."""
        self.page.locator("dialog[open]").get_by_role("button", name=label, exact=True).click()

    def said(self, text: str) -> None:
        """Wait for a message at the corner of the page, and close it."""
        box = self.page.locator(".toast", has_text=text).first
        box.wait_for()
        box.get_by_role("button").click()

    # ── the end ───────────────────────────────────────────────────────────────────────────────────

    def check(self) -> None:
        """See that nothing went wrong so far, and that nothing came from elsewhere."""
        assert not self.problems, f"{self.page.url}: {self.problems}"
        assert self.pwned() is None, self.page.url
        own = urlsplit(self.address).netloc
        foreign = [each for each in self.requests if urlsplit(each).netloc != own]
        assert not [each for each in foreign if not each.startswith("data:")], foreign

    def close(self) -> None:
        """Check, and leave."""
        try:
            self.check()
        finally:
            self.page.close()
