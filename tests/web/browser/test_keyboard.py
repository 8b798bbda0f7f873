"""The dashboard by keyboard alone."""

from __future__ import annotations

from tests.web.browser.conftest import Opens
from tests.web.browser.shop import Shop

FOCUSED = """() => {
    const e = document.activeElement;
    const style = getComputedStyle(e);
    return {tag: e.tagName, text: (e.textContent || e.value || "").trim().slice(0, 40),
            outline: parseFloat(style.outlineWidth) > 0 && style.outlineStyle !== "none"};
}"""


def test_letters_lead_to_pages_rows_and_the_search(tab: Opens) -> None:
    opened = tab("/")
    page = opened.page
    for letter, path in (("d", "/dead"), ("s", "/schedules"), ("f", "/flows"), ("w", "/workers")):
        page.keyboard.press("g")
        page.keyboard.press(letter)
        page.wait_for_url(f"**{path}")
    opened.open("/schedules", tenant="default", queue="billing")
    for key, focused in (("j", "hourly"), ("j", "nightly"), ("j", "nightly"), ("k", "hourly")):
        page.keyboard.press(key)
        assert page.evaluate(FOCUSED)["text"] == focused
    page.keyboard.press("Enter")
    page.wait_for_url("**/jobs?*name=decline*")
    page.keyboard.press("/")
    page.keyboard.type("declined")
    page.keyboard.press("Enter")
    page.wait_for_url("**/job?*id=declined")
    page.keyboard.press("?")
    assert page.locator("dialog[open]").inner_text().startswith("Keyboard")
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0


def test_tab_reaches_everything_and_the_focus_is_always_visible(tab: Opens) -> None:
    opened = tab("/schedules")
    opened.page.keyboard.press("Tab")
    assert opened.page.evaluate(FOCUSED)["text"] == "Skip to the content"
    seen = []
    for _ in range(60):
        opened.page.keyboard.press("Tab")
        now = opened.page.evaluate(FOCUSED)
        if now["tag"] == "BODY":
            break
        assert now["outline"], f"the focus on {now} cannot be seen"
        seen.append(now["text"])
    assert {"Overview", "Filter", "nightly", "Run now", "Pause"} <= set(seen)


def test_arrows_walk_along_the_graph_of_a_flow(tab: Opens, shop: Shop) -> None:
    opened = tab("/flow", tenant="default", queue="billing", id="order-7")
    page = opened.page
    first = page.locator("figure a[data-n]").first
    assert page.locator("figure a[data-n][tabindex='0']").count() == 1
    first.focus()
    page.keyboard.press("ArrowRight")
    current = "() => document.activeElement.dataset.job"
    assert page.evaluate(current).endswith(shop.flow.id)
    page.keyboard.press("ArrowLeft")
    before = page.evaluate(current)
    page.keyboard.press("ArrowDown")
    assert page.evaluate(current) != before
    assert page.locator("figure path.lit").count() == 1
    page.keyboard.press("Enter")
    page.wait_for_url("**/job?*")


def test_a_dialog_keeps_the_focus_and_escape_changes_nothing(tab: Opens, shop: Shop) -> None:
    opened = tab("/workers")
    opened.row("shop-2").get_by_role("button", name="Drain").press("Enter")
    dialog = opened.find("dialog[open]")
    dialog.wait_for()
    assert opened.page.evaluate("document.activeElement.closest('dialog') !== null")
    opened.page.keyboard.press("Escape")
    assert dialog.count() == 0
    assert not any(worker.draining for worker in shop.live.run(shop.archive.workers()))
