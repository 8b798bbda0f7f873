"""`jq-ctl events`."""

from __future__ import annotations

import getpass
import json
import socket
import subprocess
import sys
from collections.abc import Callable

from tests.cli.kit import Ctl

Work = Callable[[], None]


def test_the_events_of_one_job_are_printed_in_order(ctl: Ctl, work: Work) -> None:
    ctl("job", "submit", "add", "-q", "shop", "--id", "sum", "--payload", "[2, 3]")
    ctl("job", "submit", "boom", "-q", "shop", "--id", "bad")
    work()
    story = ctl.json("events", "--job", "sum", "--all")
    assert [event["kind"] for event in story] == ["accepted", "started", "completed"]
    assert all(event["job"] == "sum" and event["queue"] == "shop" for event in story)
    assert story[1]["worker"] == "here"
    assert [e["job"] for e in ctl.json("events", "--kind", "failed")] == ["bad"]
    shown = ctl("events").stdout.splitlines()
    assert len(shown) == 6
    assert any("run 1 on here" in line for line in shown)


def test_the_last_events_are_shown_and_a_position_continues_from_there(ctl: Ctl) -> None:
    for n in range(5):
        ctl("job", "submit", "add", "-q", "shop", "--id", f"job-{n}")
    last = ctl.json("events", "-n", "2")
    assert [event["job"] for event in last] == ["job-3", "job-4"]
    position = ctl.json("events", "--all")[1]["position"]
    assert [e["job"] for e in ctl.json("events", "-q", "shop", "--after", position)] == [
        "job-2",
        "job-3",
        "job-4",
    ]
    assert [e["job"] for e in ctl.json("events", "-q", "shop", "--after", position, "-n", "1")] == [
        "job-2"
    ]
    ctl("job", "submit", "add", "-q", "aaa", "--id", "elsewhere")
    assert [event["job"] for event in ctl.json("events", "-n", "3")] == [
        "job-3",
        "job-4",
        "elsewhere",
    ]
    assert (
        "not a valid position" in ctl("events", "-q", "shop", "--after", "nonsense", code=2).stderr
    )
    assert "add --queue" in ctl("events", "--after", position, code=2).stderr


def test_following_prints_new_events_as_one_document_per_line(ctl: Ctl, url: str) -> None:
    ctl("job", "submit", "add", "-q", "shop", "--id", "before")
    command = [
        sys.executable,
        "-m",
        "jobq.cli.ctl",
        "--url",
        url,
        "events",
        "--follow",
        "--all",
        "-n",
        "3",
        "-o",
        "json",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert (
            json.loads(process.stdout.readline())["job"] == "before"
        )  # the command follows the log now
        ctl("job", "submit", "add", "-q", "shop", "--id", "after")
        ctl("job", "submit", "add", "-q", "new", "--id", "elsewhere")
        assert {json.loads(line)["job"] for line in process.stdout} == {"after", "elsewhere"}
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


def test_an_operators_action_is_recorded_with_the_users_name(ctl: Ctl) -> None:
    user = f"{getpass.getuser()}@{socket.gethostname()}"
    ctl("job", "submit", "add", "-q", "shop", "--id", "a", "--delay", "1h")
    ctl("queue", "pause", "shop")
    ctl("job", "promote", "a")
    ctl("limit", "set", "shop", "--limit", "3")
    ctl("schedule", "set", "nightly", "add", "-q", "shop", "--every", "1h")
    ctl("schedule", "remove", "nightly", "--yes")
    ctl("job", "submit", "add", "-q", "shop", "--id", "b")
    ctl("job", "cancel", "b")
    ctl("queue", "clear", "shop", "--yes")
    ctl("queue", "clean", "shop", "--state", "cancelled", "--yes")
    ctl("queue", "resume", "shop")
    recorded = [
        (event["kind"], event["actor"]) for event in ctl.json("events", "--all", "--no-follow")
    ]
    assert recorded == [
        ("accepted", None),
        ("paused", user),
        ("promoted", user),
        ("limits", user),
        ("schedule", user),
        ("schedule", user),
        ("accepted", None),
        ("cancelled", user),
        ("cancelled", user),
        ("cleared", user),
        ("purged", user),
        ("resumed", user),
    ]
    (purged,) = ctl.json("events", "--kind", "purged")
    assert (purged["job"], purged["state"], purged["reason"], purged["shard"]) == (
        "",
        None,
        "2 cancelled jobs",
        0,
    )
    numbers = [event["number"] for event in ctl.json("events", "--all")]
    assert numbers == list(range(1, 13))
    lines = ctl("events").stdout.splitlines()
    assert any("cleared" in line and "1 job" in line and f"by {user}" in line for line in lines)


def test_obliterating_a_queue_is_recorded_with_the_users_name(ctl: Ctl) -> None:
    ctl("job", "submit", "add", "-q", "shop", "--id", "a")
    ctl("queue", "obliterate", "shop", "--yes")
    ctl("job", "submit", "add", "-q", "shop", "--id", "a")
    recorded = [
        (event["kind"], event["actor"] is not None) for event in ctl.json("events", "--all")
    ]
    assert recorded == [
        ("accepted", False),
        ("cancelled", True),
        ("obliterated", True),
        ("accepted", False),
    ]
