"""`jq-ctl schedule …`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.kit import Ctl

Work = Callable[[], None]


def nightly(ctl: Ctl, *more: str) -> Any:
    return ctl.json(
        "schedule",
        "set",
        "nightly",
        "add",
        "-q",
        "shop",
        "--cron",
        "0 3 * * *",
        "--tz",
        "Europe/Zurich",
        "--payload",
        "[1, 2]",
        *more,
    )


def test_a_schedule_is_created_and_shown(ctl: Ctl) -> None:
    made = nightly(ctl, "--limit", "3", "--catch-up", "one")
    assert (made["id"], made["queue"], made["name"], made["args"]) == (
        "nightly",
        "shop",
        "add",
        [1, 2],
    )
    assert (made["cron"], made["tz"], made["limit"], made["catch_up"], made["every_ms"]) == (
        "0 3 * * *",
        "Europe/Zurich",
        3,
        "one",
        None,
    )
    shown = ctl("schedule", "show", "nightly").stdout
    assert "add(1, 2)" in shown
    assert "0 of 3" in shown
    assert ctl.json("schedule", "show", "nightly") == made


def test_schedules_are_listed_with_their_next_times(ctl: Ctl) -> None:
    nightly(ctl)
    ctl(
        "schedule",
        "set",
        "poll",
        "add",
        "-q",
        "mail",
        "--every",
        "5m",
        "--after-complete",
        "-a",
        "a=1",
        "-a",
        "b=2",
    )
    lines = ctl("schedule", "list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["ID", "poll", "nightly"]
    assert "5m after the last has ended" in lines[1]
    assert "in 5m" in lines[1] or "in 4m" in lines[1]
    assert "(Europe/Zurich)" in lines[2]
    assert [s["id"] for s in ctl.json("schedule", "list", "-q", "mail")] == ["poll"]


def test_setting_the_same_schedule_again_changes_nothing(ctl: Ctl) -> None:
    assert nightly(ctl) == nightly(ctl)


def test_without_schedules_the_list_says_how_to_create_one(ctl: Ctl) -> None:
    ctl("queue", "create", "shop")
    assert "no schedules" in ctl("schedule", "list").stderr


def test_a_schedule_can_be_paused_and_resumed(ctl: Ctl) -> None:
    nightly(ctl)
    ctl("schedule", "pause", "nightly")
    assert ctl.json("schedule", "show", "nightly")["paused"] is True
    assert "paused" in ctl("schedule", "list").stdout
    assert (
        ctl("schedule", "pause", "nightly", code=1).stdout
        == "nightly was not changed: it is paused already\n"
    )
    ctl("schedule", "resume", "nightly", "-q", "shop")
    assert ctl.json("schedule", "show", "nightly")["paused"] is False


def test_a_schedule_can_be_run_now(ctl: Ctl, work: Work) -> None:
    nightly(ctl)
    job = ctl.json("schedule", "run", "nightly")
    assert (job["name"], job["args"], job["schedule"]) == ("add", [1, 2], "nightly")
    work()
    assert ctl.json("job", "status", job["id"])["result"] == 3
    assert ctl.json("schedule", "show", "nightly")["fired"] == 0


def test_a_schedule_can_be_removed(ctl: Ctl) -> None:
    nightly(ctl)
    assert "nothing was done" in ctl("schedule", "remove", "nightly", input="n\n", code=1).stderr
    ctl("schedule", "rm", "nightly", "--yes")
    assert "no schedule nightly" in ctl("schedule", "show", "nightly", code=1).stderr


def test_a_schedule_id_in_two_queues_needs_the_queue(ctl: Ctl) -> None:
    for queue in ("a", "b"):
        ctl("schedule", "set", "s", "t", "-q", queue, "--every", "1h")
    assert "in several queues (a, b)" in ctl("schedule", "pause", "s", code=1).stderr
    ctl("schedule", "pause", "s", "-q", "b")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "either --cron or --every"),
        (("--cron", "* * * * *", "--every", "5m"), "either --cron or --every"),
        (("--cron", "* * * * *", "--after-complete"), "--after-complete needs --every"),
        (("--cron", "0 25 * * *"), "25"),
        (("--cron", "* * * * *", "--tz", "Mars/Base"), "Mars/Base"),
        (("--every", "0"), "must be above 0"),
        (("--every", "5m", "--payload", "7"), "--payload must be"),
    ],
)
def test_wrong_arguments_are_named_in_the_error(
    ctl: Ctl, options: tuple[str, ...], said: str
) -> None:
    assert said in ctl("schedule", "set", "s", "t", *options, code=2).stderr
