"""The report's page in a real Chromium: charts, filters, themes, phones, and hostile names."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jobq.pipeline.insight.burn import Slice, burn_rates
from jobq.pipeline.insight.causes import Cause
from jobq.pipeline.insight.cost import Cost
from jobq.pipeline.insight.scope import Scope
from jobq.pipeline.insight.standouts import Standout
from jobq.pipeline.insight.workers import Trouble, WorkerUse
from jobq.pipeline.report.data import Period, ReportData
from jobq.pipeline.report.page import embedded, page
from jobq.pipeline.report.series import ENDINGS, Grid, QueueSeries, TaskSeries, WorkerSeries
from tests.pipeline.conftest import History

playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
in_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium in the PATH")

START, HOUR = History.START, 3_600_000
HOSTILE = "\" onfocus=alert(1) '></script><img src=x onerror=alert(1)>\"'`\u2028\x1b[31m"
LAKE = {"events": 120, "duplicates": 1, "late": 0, "quarantined": 0}


def queue(tenant: str, name: str, points: int, each: int) -> QueueSeries:
    counts = {what: [0] * points for what in ("cancelled", "retried", "stalled")}
    counts |= {"accepted": [each] * points, "completed": [each] * points}
    counts["failed"] = [1, *[0] * (points - 1)]
    return QueueSeries(tenant=tenant, queue=name, counts=counts, waiting=[3] * points)


def task(tenant: str, where: str, name: str, points: int, each: int) -> TaskSeries:
    counts = {what: [0] * points for what in ENDINGS} | {"completed": [each] * points}
    return TaskSeries(
        tenant=tenant,
        queue=where,
        name=name,
        counts=counts,
        wait=[[20, each]] * points,
        run=[[40, each]] * points,
    )


def report(points: int = 96, step_ms: int = 900_000, *, then: bool = True) -> ReportData:
    """A day of two tenants: acme with two tasks, and one whose names are hostile."""
    grid = Grid(START, step_ms, points)

    def period(each: int) -> Period:
        return Period(
            queues=[queue("acme", "mail", points, each), queue(HOSTILE, HOSTILE, points, each)],
            tasks=[
                task("acme", "mail", "send", points, each),
                task("acme", "mail", "digest", points, 1),
                task(HOSTILE, HOSTILE, HOSTILE, points, each),
            ],
        )

    slices = [
        Slice(
            tenant="acme",
            queue="mail",
            target=HOSTILE,
            objective=0.99,
            hour=START // HOUR + n,
            good=90,
            total=100,
        )
        for n in range(6)
    ]
    who: list[tuple[str, str, str]] = [("acme", "mail", "send"), (HOSTILE, HOSTILE, HOSTILE)]
    causes = [
        Cause(
            tenant=tenant,
            queue=where,
            tasks=[name],
            reason="error",
            fingerprint="f1",
            failures=9,
            dead=3,
            first_ms=START,
            last_ms=START + 5,
            example=HOSTILE,
            example_job=HOSTILE,
        )
        for tenant, where, name in who
    ]
    return ReportData(
        grid=grid,
        scope=Scope(),
        days_back=7,
        now=period(10),
        then=period(5) if then else None,
        workers=WorkerSeries(
            covered_ms=[500] * points, busy_ms=[900] * points, present_ms=[1000] * points
        ),
        burn=burn_rates(slices, [one.hour for one in slices]),
        standouts=[
            Standout(
                tenant=tenant,
                queue=where,
                name=name,
                what="failing",
                then=0.01,
                now=0.2,
                factor=20.0,
                worse=True,
            )
            for tenant, where, name in who
        ],
        dead=causes,
        new=causes,
        costs=[
            Cost(
                tenant="acme",
                queue="mail",
                name=f"task {n}",
                runs=1,
                run_ms=1000 + n,
                lost_ms=10,
                share=0.1,
            )
            for n in range(12)
        ],
        slo=[
            {
                "tenant": "acme",
                "queue": "mail",
                "target": HOSTILE,
                "objective": 0.99,
                "good": 9,
                "total": 10,
                "attainment": 0.9,
                "met": False,
            }
        ],
        tasks=[
            {
                "tenant": HOSTILE,
                "queue": HOSTILE,
                "name": HOSTILE,
                "runs": 1,
                "max": 5,
                "p50": 1,
                "p95": 2,
                "p99": None,
            }
        ],
        reasons=[{"tenant": "acme", "queue": "mail", "name": None, "reason": None, "count": 3}],
        used=[
            WorkerUse(worker=HOSTILE, first_ms=START, present_ms=1000, busy_ms=900, covered_ms=500)
        ],
        trouble=[
            Trouble(
                tenant="acme", queue="mail", name="send", runs=10, retried=2, failed=1, stalled=1
            )
        ],
        trouble_by_worker=[Trouble(worker=HOSTILE, runs=10, retried=2, failed=1, stalled=1)],
        lake=LAKE,
        audit={"verdict": "proved"},
    )


# ── the text of the page ──────────────────────────────────────────────────────────────────────────


def test_the_page_refers_to_nothing_outside() -> None:
    calm = msgspec.structs.replace(report(), dead=[], new=[])
    text = page(calm, "jobq").replace("http://www.w3.org/2000/svg", "")
    for outside in ("http:", "https:", "//cdn", "@import", "url(", " src=", "innerHTML", "eval("):
        assert outside not in text.replace("\\u003cimg src=", "").replace("&lt;img src=", "")


def test_data_cannot_end_its_script_block() -> None:
    made = embedded({"name": HOSTILE, "end": "]]> <!-- -->"})
    assert not any(character in made for character in "<>&\u2028")
    assert msgspec.json.decode(made)["name"] == HOSTILE


# ── in a browser ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        # Root may not use Chromium's sandbox; the pages are our own.
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


class Opened:
    """A page, with everything that went wrong in it."""

    def __init__(self, browser: Any, folder: Path, data: ReportData, **how: Any) -> None:
        file = folder / "report.html"
        file.write_text(page(data, HOSTILE), encoding="utf-8")
        how.setdefault("viewport", {"width": 1200, "height": 900})
        self.tab = browser.new_page(**how)
        self.tab.set_default_timeout(20_000)
        self.problems: list[str] = []
        self.tab.on("console", lambda message: self.problems.append(message.text))
        self.tab.on("pageerror", lambda error: self.problems.append(str(error)))
        self.tab.on("dialog", self._refuse)
        self.requests: list[str] = []
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.goto(file.as_uri())

    def _refuse(self, dialog: Any) -> None:
        self.problems.append("a script opened a dialog")
        dialog.dismiss()

    def count(self, selector: str) -> int:
        return int(self.tab.locator(selector).count())

    def tile(self, label: str) -> str:
        return str(self.tab.locator(f'.tile:has(span:text-is("{label}")) b').inner_text())

    def close(self, screenshot: Path) -> None:
        """Keep a screenshot to look at, and see that nothing went wrong."""
        self.tab.screenshot(path=str(screenshot), full_page=True)
        overflow = self.tab.evaluate("document.documentElement.scrollWidth - innerWidth")
        self.tab.close()
        assert self.problems == []
        assert len(self.requests) == 1
        assert overflow <= 0, "the page is wider than the window"


@in_chromium
def test_hostile_names_are_only_text_and_the_policy_allows_the_page(
    browser: Any, tmp_path: Path
) -> None:
    opened = Opened(browser, tmp_path, report())
    assert opened.count("img") == 0
    assert opened.count("script") == 2
    names = "[...document.querySelectorAll('*')].flatMap((one) => one.getAttributeNames())"
    assert not [name for name in opened.tab.evaluate(names) if name.startswith("on")]
    assert opened.count(".chart svg") == 7
    # Even a script that got into the page would not run.
    opened.tab.evaluate(
        "document.body.append(Object.assign(document.createElement('script'),"
        "{textContent: 'window.broken = 1'}))"
    )
    assert opened.tab.evaluate("window.broken") is None
    assert "Content Security Policy" in opened.problems.pop()
    opened.close(tmp_path / "hostile.png")


@in_chromium
def test_filters_narrow_charts_tiles_and_tables(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path, report())
    assert opened.tile("jobs accepted") == "1.92k"
    opened.tab.select_option("#tenant", "acme")
    assert opened.tile("jobs accepted") == "960"
    shown = opened.tab.locator("section", has_text="What stands out").locator("tbody tr:visible")
    assert shown.count() == 1
    opened.tab.select_option("#task", "digest")
    assert opened.tile("completed") == "96"
    assert shown.count() == 0
    assert (
        opened.tab.locator("section", has_text="What stands out")
        .get_by_text("Nothing matches.")
        .is_visible()
    )
    # The selection is part of the address, so that it can be shared.
    assert opened.tab.evaluate("location.hash") == "#tenant=acme&task=digest"
    opened.tab.reload()
    assert opened.tile("completed") == "96"
    opened.requests.pop()
    opened.tab.select_option("#task", "")
    opened.tab.select_option(
        "#tenant", label=opened.tab.locator("#tenant option").nth(1).inner_text()
    )
    assert shown.count() == 1, "a hostile name can be selected too"
    opened.close(tmp_path / "filtered.png")


@in_chromium
def test_one_of_a_tenants_queues_can_be_chosen(browser: Any, tmp_path: Path) -> None:
    made = report(then=False)
    (standout, *_) = made.standouts
    more = Period(
        queues=[*made.now.queues, queue("acme", "bills", 96, 1)],
        tasks=[*made.now.tasks, task("acme", "bills", "charge", 96, 1)],
    )
    another = msgspec.structs.replace(standout, queue="bills", name="charge")
    both = msgspec.structs.replace(made, now=more, standouts=[standout, another])
    opened = Opened(browser, tmp_path, both)
    shown = opened.tab.locator("section", has_text="What stands out").locator("tbody tr:visible")
    opened.tab.select_option("#tenant", "acme")
    assert (opened.tile("jobs accepted"), shown.count()) == ("1.06k", 2)
    opened.tab.select_option("#queue", "bills")
    assert (opened.tile("jobs accepted"), shown.count()) == ("96", 1)
    assert "charge" in shown.inner_text()
    assert opened.tab.locator("#task option").all_text_contents()[1:] == ["charge"]
    opened.close(tmp_path / "queue.png")


@in_chromium
def test_the_other_period_is_dashed_and_can_be_left_out(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path, report())
    assert opened.count("#chart-throughput .earlier") == 3
    assert "× 2" in opened.tab.locator(".tile", has_text="jobs accepted").inner_text()
    opened.tab.uncheck("#compare")
    assert opened.count(".earlier") == 0
    opened.close(tmp_path / "alone.png")


@in_chromium
def test_time_ticks_are_round_and_the_value_of_a_point_can_be_read(
    browser: Any, tmp_path: Path
) -> None:
    opened = Opened(browser, tmp_path, report())
    ticks = opened.tab.locator("#chart-throughput .time").all_text_contents()
    assert ticks[0] == "00:00"
    assert all(tick.endswith(":00") for tick in ticks)
    assert 6 <= len(ticks) <= 14
    opened.tab.hover("#chart-throughput svg")
    said = opened.tab.locator("#tip").inner_text()
    assert "15 Nov, 11:30 UTC" in said
    assert "accepted: 1.33" in said
    opened.close(tmp_path / "ticks.png")


@in_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_the_theme_of_its_reader_and_fits_a_phone(
    browser: Any, tmp_path: Path, scheme: str
) -> None:
    opened = Opened(
        browser,
        tmp_path,
        report(),
        viewport={"width": 360, "height": 740},
        color_scheme=scheme,
        has_touch=True,
    )
    background = "getComputedStyle(document.body).backgroundColor"
    light, dark = "rgb(246, 247, 249)", "rgb(16, 18, 20)"
    assert opened.tab.evaluate(background) == (dark if scheme == "dark" else light)
    opened.tab.click("#theme")
    assert opened.tab.evaluate(background) == (light if scheme == "dark" else dark)
    assert opened.tab.locator("#chart-wait svg").bounding_box()["width"] <= 340
    opened.close(tmp_path / f"phone-{scheme}.png")


@in_chromium
def test_half_a_minute_of_jobs_fills_every_chart(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path, report(30, 1000, then=False))
    for name in ("throughput", "wait", "run", "backlog", "trouble", "workers"):
        drawn = opened.tab.locator(f"#chart-{name} path").first.get_attribute("d")
        assert drawn.count("L") == 29, name
    ticks = opened.tab.locator("#chart-throughput .time").all_text_contents()
    assert ticks[:2] == ["00:00:00", "00:00:05"]
    assert opened.count("#compare") == 0
    opened.close(tmp_path / "minute.png")


@in_chromium
def test_long_tables_are_folded(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path, report())
    cost = opened.tab.locator("section", has=opened.tab.get_by_role("heading", name="Cost"))
    assert cost.locator("tbody tr:visible").count() == 8
    cost.get_by_role("button", name="Show all 12").click()
    assert cost.locator("tbody tr:visible").count() == 12
    opened.close(tmp_path / "long.png")


@in_chromium
def test_a_lake_without_events_has_a_calm_page(browser: Any, tmp_path: Path) -> None:
    opened = Opened(browser, tmp_path, ReportData(lake={**LAKE, "events": 0}))
    assert opened.tab.get_by_text("No events yet").is_visible()
    opened.close(tmp_path / "nothing.png")
