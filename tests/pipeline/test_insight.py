"""The answers of `jq-pipeline show`, against cases that were computed by hand."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from jobq.pipeline.cli import group, main
from jobq.pipeline.cli.show import NAMES, write_rows
from jobq.pipeline.insight.burn import MOST, Slice, burn_rates, rate
from jobq.pipeline.insight.causes import rerun_command
from jobq.pipeline.insight.scope import Scope
from jobq.pipeline.insight.standouts import TaskSums, standouts
from jobq.pipeline.insight.views import VIEWS, Question, answer, compared_hours
from jobq.pipeline.jobs.derive import derive
from jobq.pipeline.lake import Lake
from jobq.pipeline.slo import Target
from jobq.pipeline.tables import TASK_HOUR
from tests.pipeline.conftest import History, take_in

HOUR, DAY = 3600, 86_400
TARGETS = (Target(name="works", succeed=True, objective=0.9),)


# ── rules without Spark ───────────────────────────────────────────────────────────────────────────


def test_a_burn_rate_is_the_missed_share_over_the_budget() -> None:
    assert rate(98, 100, 0.99) == pytest.approx(2.0)
    assert rate(100, 100, 0.99) == 0.0
    assert rate(0, 0, 0.99) is None


def test_a_target_without_a_budget_burns_at_the_highest_rate() -> None:
    assert rate(99, 100, 1.0) == MOST
    assert rate(100, 100, 1.0) == 0.0


def hour(n: int, good: int, total: int) -> Slice:
    return Slice(
        tenant="acme", queue="mail", target="works", objective=0.9, hour=n, good=good, total=total
    )


def test_a_target_burns_only_while_both_windows_do() -> None:
    bad, fine = hour(10, 0, 300), hour(11, 100, 100)
    first, second = burn_rates([bad, fine], [10, 11])
    assert first.short == pytest.approx(10.0)
    assert first.long == pytest.approx(10.0)
    assert first.burning
    assert second.short == 0.0
    assert second.long == pytest.approx(7.5)
    assert not second.burning


def test_the_long_window_has_exactly_six_hours() -> None:
    (at_15,) = burn_rates([hour(10, 0, 60), hour(15, 60, 60)], [15])
    (at_16,) = burn_rates([hour(10, 0, 60), hour(15, 60, 60)], [16])
    assert at_15.long == pytest.approx(5.0)
    assert (at_16.short, at_16.long) == (None, 0.0)


def sums(
    runs: int, failing: int = 0, run: int = 100, wait: int = 50, name: str = "send"
) -> TaskSums:
    """The sums of a task; `run` and `wait` are milliseconds per run."""
    return TaskSums(
        tenant="acme",
        queue="mail",
        name=name,
        runs=runs,
        failing=failing,
        run_ms=runs * run,
        wait_ms=runs * wait,
    )


@pytest.mark.parametrize(
    ("then", "now", "expected"),
    [
        (sums(1000), sums(1001), []),  # nothing happened
        (sums(1000), sums(2000), ["runs"]),
        (sums(4), sums(8), []),  # twice as many, but that is chance
        (sums(1000, failing=10), sums(1000, failing=100), ["failing"]),
        (sums(1000, failing=10), sums(1000, failing=15), []),  # half a percentage point
        (sums(20), sums(20, failing=2), []),  # 10 % instead of none, of 20 runs: chance
        (sums(100_000, failing=0), sums(100_000, failing=900), []),  # sure, but below one point
        (sums(100, run=100), sums(100, run=200), ["run time"]),
        (sums(100, run=2), sums(100, run=6), []),  # 4 ms more
        (sums(29, wait=1000), sums(29, wait=9000), []),  # too few runs for a mean
        (sums(100, run=900, wait=900), sums(100, run=100, wait=100), ["run time", "wait"]),
        (sums(100), None, ["gone"]),
        (None, sums(100), ["new"]),
        (None, sums(15), []),
    ],
)
def test_only_large_and_sure_changes_stand_out(
    then: TaskSums | None, now: TaskSums | None, expected: list[str]
) -> None:
    found = standouts([then] if then else [], [now] if now else [])
    assert [change.what for change in found] == expected


def test_changes_for_the_worse_come_first() -> None:
    then = [sums(1000, name="a"), sums(1000, name="b"), sums(1000, name="c", run=400)]
    now = [sums(9000, name="a"), sums(1000, 300, name="b"), sums(1000, name="c", run=100)]
    found = standouts(then, now)
    assert [(change.name, change.what, change.worse) for change in found] == [
        ("b", "failing", True),
        ("c", "run time", False),
        ("a", "runs", False),
    ]
    assert (found[0].then, found[0].now) == (0.0, 0.3)


def test_an_hour_that_is_not_over_is_not_compared() -> None:
    midnight, hours = 20_000 * DAY * 1000, 3_600_000
    day = 20_000 * 24
    assert compared_hours(Scope(), midnight + 5 * hours + 1) == (day, day + 5)
    assert compared_hours(Scope(), midnight + 1) == (day, day + 1)
    assert compared_hours(Scope(since="2024-10-03", until="2024-10-03"), midnight + 5 * hours) == (
        day - 24,
        day,
    )


def test_names_with_special_characters_are_quoted_in_the_command() -> None:
    command = rerun_command("a'; rm -rf /", "q $(x)", "f1")
    assert shlex.split(command) == [
        *("jq-ctl", "--tenant", "a'; rm -rf /", "job", "rerun", "-q", "q $(x)"),
        *("--where", "error=f1"),
    ]


def test_the_command_line_names_every_view() -> None:
    assert [view.name for view in VIEWS] == list(NAMES)
    shown = CliRunner().invoke(main, ["show", "--help"]).output
    assert all(f"{name} " in shown for name in NAMES)


def test_text_of_jobs_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    row = {"worker": "w[red]\x1b[31m", "share": 0.25, "runs": 1234}
    write_rows(("worker", "share", "runs"), [row], "table")
    printed = capsys.readouterr().out
    assert "w[red]\\x1b[31m" in printed
    assert "25.0%" in printed
    assert "1,234" in printed


# ── against a lake ────────────────────────────────────────────────────────────────────────────────


def life(h: History, job: str, at: float, end: str, task: str, run: float = 2, **more: Any) -> None:
    """A job of a task on a worker of its own."""
    h.event("accepted", job, "waiting", at=at, name=task)
    h.event("started", job, "active", at=at + 1, name=task, worker=f"w-{task}")
    h.event(end, job, end, at=at + 1 + run, name=task, worker=f"w-{task}", **more)


BROKEN: dict[str, Any] = {"reason": "error", "error": "KeyError: 'x'", "fingerprint": "f1"}
LATER: dict[str, Any] = {"reason": "timeout", "error": "Timeout: 5 s", "fingerprint": "f2"}


def story() -> History:
    """A day, and the day a week later: `send` breaks there, and a late event arrives."""
    h, week = History(), 7 * DAY
    for n in range(40):
        life(h, f"a{n}", 10 * n, "completed", "send")
        bad = n < 20
        life(
            h,
            f"b{n}",
            week + 10 * n,
            "failed" if bad else "completed",
            "send",
            **(LATER if bad else {}),
        )
    life(h, "c", 500, "failed", "bill", run=60, **BROKEN)
    life(h, "d", week + 500, "failed", "bill", run=60, **BROKEN)
    life(h, "d2", week + 600, "failed", "send", run=2, **BROKEN)
    h.event("accepted", "e", "waiting", at=week + HOUR, name="bill")
    h.event("started", "e", "active", at=week + HOUR + 1, name="bill", worker="w-bill")
    h.event("stalled", "e", "waiting", at=week + HOUR + 31, name="bill", worker="w-send")
    h.event("started", "e", "active", at=week + HOUR + 40, name="bill", worker="w-send")
    return h


@pytest.fixture(scope="module")
def lake(spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Lake:
    """The story. Every seventh event comes late, after the tables were derived without it."""
    lake = Lake(spark, str(tmp_path_factory.mktemp("insight") / "lake"))
    lines = story().lines
    take_in(lake, [line for n, line in enumerate(lines) if n % 7])
    derive(lake, TARGETS)
    take_in(lake, lines[::7], 1)
    derive(lake, TARGETS)
    return lake


def ask(lake: Lake, view: str, scope: Scope | None = None, **more: Any) -> list[dict[str, Any]]:
    return answer(lake, view, Question(scope or Scope(), **more))


SECOND_DAY = Scope(since="2025-11-22", until="2025-11-22")


def test_task_hours_are_exact_although_events_were_late(lake: Lake) -> None:
    rows = lake.read(TASK_HOUR).where("day = '2025-11-22'").drop("day", "tenant", "queue").collect()
    found = sorted(map(tuple, rows), key=str)
    assert found == [
        # name, worker, runs, completed, retried, failed, stalled, cancelled, returned, run, lost,
        # wait, hour
        ("bill", "w-bill", 1, 0, 0, 0, 1, 0, 0, 30_000, 30_000, 1000, 1),
        ("bill", "w-bill", 1, 0, 0, 1, 0, 0, 0, 60_000, 60_000, 1000, 0),
        ("send", "w-send", 41, 20, 0, 21, 0, 0, 0, 82_000, 42_000, 41_000, 0),
    ]


def test_dead_letters_are_grouped_by_cause_over_all_days(lake: Lake) -> None:
    later, broken = ask(lake, "dead-letters")
    assert (later["fingerprint"], later["dead"], later["tasks"]) == ("f2", 20, "send")
    assert (broken["fingerprint"], broken["dead"], broken["tasks"]) == ("f1", 3, "bill, send")
    assert (broken["first_at"], broken["last_at"]) == ("2025-11-15 00:09:21", "2025-11-22 00:10:03")
    assert broken["example"] == "KeyError: 'x'"
    assert broken["example_job"] == "d2"
    assert broken["command"] == "jq-ctl --tenant acme job rerun -q mail --where error=f1"


def test_a_failure_is_new_if_no_earlier_event_has_its_cause(lake: Lake) -> None:
    week_later_ms = History.START + 7 * DAY * 1000
    (new,) = ask(lake, "new-failures", after_ms=week_later_ms)
    assert (new["fingerprint"], new["first_at"]) == ("f2", "2025-11-22 00:00:03")
    assert ask(lake, "new-failures", after_ms=week_later_ms + 4_000) == []
    assert len(ask(lake, "new-failures", after_ms=History.START)) == 2
    # The scope's first day does not hide where a cause was seen before.
    (again,) = ask(lake, "new-failures", SECOND_DAY, after_ms=week_later_ms)
    assert again["fingerprint"] == "f2"


def test_cost_is_run_time_with_the_share_that_was_lost(lake: Lake) -> None:
    send, bill = sorted(
        ask(lake, "cost", SECOND_DAY, per_hour=3600.0), key=lambda row: -row["runs"]
    )
    assert (send["task"], send["runs"], send["run_ms"], send["lost_ms"]) == (
        "send",
        41,
        82_000,
        42_000,
    )
    assert (bill["task"], bill["run_ms"], bill["lost_ms"]) == ("bill", 90_000, 90_000)
    assert send["share"] == pytest.approx(82 / 172)
    assert send["price"] == 82.0


def test_burn_rates_are_those_of_the_latest_hour_with_data(lake: Lake) -> None:
    (burn,) = ask(lake, "burn")
    # 22 of the 42 jobs that ended in the last hour failed; the budget is a tenth.
    assert burn["hour"] == "2025-11-22 00:00:00"
    assert burn["burn_1h"] == burn["burn_6h"] == pytest.approx(22 / 42 / 0.1, rel=1e-6)
    assert not burn["burning"]


def test_today_is_compared_with_the_same_hours_a_week_before(lake: Lake) -> None:
    (found,) = ask(lake, "standouts")
    assert (found["task"], found["what"], found["worse"]) == ("send", "failing", True)
    assert (found["then"], found["now"]) == (0.0, pytest.approx(21 / 41))
    assert ask(lake, "standouts", days_back=3) == []


def test_the_utilisation_of_a_worker_counts_its_idle_minutes(lake: Lake) -> None:
    found = {row["worker"]: row for row in ask(lake, "workers", SECOND_DAY)}
    # w-send ran in the minutes 0:00 to 0:10. Its 41 runs took 2 s each.
    assert found["w-send"]["present_ms"] == 11 * 60_000
    assert found["w-send"]["utilisation"] == pytest.approx(82 / 660)
    # w-bill ran 60 s from 0:08:21 on and 30 s from 1:00:01 on, and was idle in between.
    assert found["w-bill"]["present_ms"] == 53 * 60_000
    assert found["w-bill"]["utilisation"] == pytest.approx(90 / (53 * 60))


def test_a_stall_is_the_trouble_of_the_worker_that_lost_the_lease(lake: Lake) -> None:
    found = [
        (row["task"], row["worker"], row["runs"], row["failed"], row["stalled"])
        for row in ask(lake, "trouble", SECOND_DAY)
    ]
    assert found == [("send", "w-send", 41, 21, 0), ("bill", "w-bill", 2, 1, 1)]


def test_show_prints_json_and_csv_and_narrows_by_task(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(group, "open_session", lambda *_, **__: lake.spark)
    monkeypatch.setattr(lake.spark.__class__, "stop", lambda _: None)
    common = ["show", "cost", "--lake", lake.root, "--task", "bill"]
    printed = CliRunner().invoke(main, [*common, "-o", "json"])
    assert [row["task"] for row in json.loads(printed.stdout)] == ["bill"]
    printed = CliRunner().invoke(main, [*common, "-o", "csv"])
    assert printed.stdout.splitlines()[0] == "tenant,queue,task,runs,run_ms,lost_ms,share,price"
    assert printed.stdout.splitlines()[1].startswith("acme,mail,bill,3,150000,150000,")
    blocks = CliRunner().invoke(main, ["show", "dead-letters", "--lake", lake.root]).stdout
    assert "20 dead, 20 failures, acme/mail: send" in blocks
    wrong = CliRunner().invoke(main, ["show", "new-failures", "--lake", "x", "--after", "monday"])
    assert "'monday' is not a time: use e.g. 2026-11-16T14:30" in wrong.output
