"""`jq-ctl queue …` on whole queues."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from jobq.core.records.jobs import QueueName
from jobq.stores import open_store
from tests.cli.kit import Ctl

Work = Callable[[], None]


def fill(ctl: Ctl, n: int, queue: str = "shop", *args: str) -> None:
    lines = "\n".join(json.dumps({"name": "add", "args": [i, 1]}) for i in range(n))
    ctl("job", "submit", "-q", queue, "--lines", "-", *args, input=lines)


def counts(ctl: Ctl, queue: str = "shop") -> dict[str, int]:
    return {state: n for state, n in ctl.json("queue", "stats", queue)["counts"].items() if n}


def test_queues_are_listed_with_their_counts(ctl: Ctl) -> None:
    fill(ctl, 3)
    fill(ctl, 2, "later", "--delay", "1h")
    assert {
        q["queue"]: {s: n for s, n in q["counts"].items() if n} for q in ctl.json("queue", "list")
    } == {
        "shop": {"waiting": 3},
        "later": {"delayed": 2},
    }
    lines = ctl("queue", "list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["QUEUE", "later", "shop"]
    assert "no worker" in lines[2]


def test_without_queues_the_list_says_how_to_create_one(ctl: Ctl) -> None:
    ctl("queue", "create", "shop")
    ctl("queue", "delete", "shop", "--yes")
    assert "no queues yet" in ctl("queue", "list").stderr
    assert ctl.json("queue", "list") == []


def test_the_stats_of_a_queue_show_its_last_minutes(ctl: Ctl, work: Work) -> None:
    fill(ctl, 5)
    work()
    stats = ctl.json("queue", "stats", "shop")
    assert stats["counts"]["completed"] == 5
    assert sum(minute["completed"] for minute in stats["minutes"]) == 5
    shown = ctl("queue", "stats", "shop").stdout
    assert "PER MINUTE" in shown
    assert "on average" in shown


def test_a_created_queue_stores_its_retention_which_can_be_changed(ctl: Ctl) -> None:
    made = ctl.json(
        "queue", "create", "shop", "--mode", "keyed", "--keep-completed", "7d", "--keep-count", "10"
    )
    assert (made["mode"], made["retention"]["completed_ms"], made["retention"]["count"]) == (
        "keyed",
        604_800_000,
        10,
    )
    ctl("queue", "create", "shop", "--keep-failed", "1d", code=1)
    changed = ctl.json("queue", "create", "shop", "--keep-failed", "1d", "--update")
    assert changed["retention"] == {
        "completed_ms": 604_800_000,
        "failed_ms": 86_400_000,
        "cancelled_ms": 86_400_000,
        "count": 10,
    }
    ctl("queue", "create", "shop", "--mode", "plain", code=1)


def test_a_paused_queue_starts_nothing_until_resumed(ctl: Ctl, work: Work) -> None:
    fill(ctl, 1)
    ctl("queue", "pause", "shop")
    assert ctl.json("queue", "stats", "shop")["paused"] is True
    assert "paused" in ctl("queue", "list").stdout
    ctl("queue", "resume", "shop")
    work()
    assert counts(ctl) == {"completed": 1}
    ctl("queue", "pause", "ghost", code=1)


def test_clearing_cancels_waiting_jobs_and_delayed_ones_on_request(ctl: Ctl) -> None:
    fill(ctl, 1500)
    fill(ctl, 2, "shop", "--delay", "1h")
    assert "nothing was done" in ctl("queue", "clear", "shop", input="n\n", code=1).stderr
    assert ctl.json("queue", "clear", "shop", "--yes") == {"queue": "shop", "cleared": 1500}
    assert counts(ctl) == {"cancelled": 1500, "delayed": 2}
    assert ctl.json("queue", "clear", "shop", "--delayed", "--yes")["cleared"] == 2
    assert ctl.json("queue", "clear", "shop")["cleared"] == 0  # nothing to cancel, so no question


def test_cleaning_removes_ended_jobs_by_state_age_and_number(ctl: Ctl) -> None:
    fill(ctl, 1200)
    ctl("queue", "clear", "shop", "--yes")
    assert (
        ctl.json("queue", "clean", "shop", "--state", "cancelled", "--older-than", "1h", "--yes")[
            "removed"
        ]
        == 0
    )
    assert (
        ctl.json("queue", "clean", "shop", "--state", "cancelled", "-n", "150", "--yes")["removed"]
        == 150
    )
    assert ctl.json("queue", "clean", "shop", "--state", "cancelled", "--yes")["removed"] == 1050
    ctl("queue", "clean", "shop", "--state", "waiting", code=2)


def test_delete_refuses_a_queue_with_unfinished_jobs_and_obliterate_does_not(ctl: Ctl) -> None:
    fill(ctl, 1100)
    assert "has 1,100 unfinished jobs" in ctl("queue", "delete", "shop", "--yes", code=1).stderr
    assert "nothing was done" in ctl("queue", "obliterate", "shop", code=1).stderr
    assert ctl.json("queue", "obliterate", "shop", "--yes") == {"queue": "shop", "removed": 1100}
    assert ctl.json("queue", "list") == []


def test_watching_prints_every_update(ctl: Ctl) -> None:
    fill(ctl, 2)
    result = ctl("queue", "watch", "--every", "100ms", "--times", "2", "-o", "json")
    looks = [json.loads(line) for line in result.stdout.splitlines()]
    assert [look[0]["counts"]["waiting"] for look in looks] == [2, 2]
    assert "ENDED/S" in ctl("queue", "watch", "--times", "1").stdout


def test_readers_of_the_event_logs_are_listed_and_can_be_removed(ctl: Ctl) -> None:
    fill(ctl, 3)
    assert "no readers" in ctl("queue", "readers").stderr
    asyncio.run(register(ctl.url, "trial"))
    assert ctl.json("queue", "readers") == [{"queue": "shop", "reader": "trial", "position": "0"}]
    assert ctl("queue", "readers", "shop").stdout.split() == [
        "QUEUE",
        "READER",
        "POSITION",
        "shop",
        "trial",
        "0",
    ]
    assert (
        "reader trial removed from 1 queue"
        in ctl("queue", "forget-reader", "trial", "--yes").stdout
    )
    assert ctl.json("queue", "readers") == []
    refused = ctl("queue", "forget-reader", "trial", "--yes", code=1)
    assert "no reader 'trial' in these queues" in refused.stderr


async def register(url: str, reader: str) -> None:
    async with open_store(url) as store:
        await store.ack_events(QueueName("default", "shop"), reader, "0")


# ── defaults of jobs ──────────────────────────────────────────────────────────────────────────────


def test_a_queue_is_created_with_defaults_for_its_jobs(ctl: Ctl) -> None:
    made = ctl.json("queue", "create", "shop", "--max-retries", "5", "--ttl", "1h")
    assert made["defaults"] == {"max_retries": 5, "ttl_ms": 3_600_000}
    assert ctl.json("queue", "create", "shop", "--max-retries", "0", "--update")["defaults"] == {
        "max_retries": 0,
        "ttl_ms": 3_600_000,
    }
    ctl("job", "submit", "add", "-q", "shop", "--id", "a")
    assert ctl.json("job", "status", "a")["options"]["ttl_ms"] == 3_600_000
    assert "0 retries, start within 1h" in ctl("queue", "stats", "shop").stdout
    without = ctl.json("queue", "create", "shop", "--ttl", "0", "--update")
    assert without["defaults"] == {"max_retries": 0, "ttl_ms": None}


@pytest.mark.parametrize("given", [["--priority-weights"], ["--priority-weights", "9=3"]])
def test_priority_weights_are_refused_and_the_error_names_the_option_to_use(
    ctl: Ctl, given: list[str]
) -> None:
    result = ctl("queue", "create", "shop", *given, code=2)
    assert "jq-worker --queues billing=3,emails" in result.stderr
    ctl("queue", "stats", "shop", code=2)


def test_a_queue_that_exists_with_another_mode_is_an_error(ctl: Ctl) -> None:
    ctl("queue", "create", "shop", "--mode", "keyed")
    result = ctl("queue", "create", "shop", "--mode", "plain", code=1)
    assert "is keyed in the store" in result.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--max-retries", "7"], "max_retries is 5, not 7"),
        (["--ttl", "2h"], "ttl_ms is 3600000, not 7200000"),
        (["--ttl", "0"], "ttl_ms is 3600000"),
        (["--mode", "keyed"], "mode is not set, not keyed"),
        (["--keep-count", "9", "--max-retries", "5"], "count is 100000, not 9"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_creating_a_queue_that_exists_otherwise_is_an_error_and_changes_nothing(
    ctl: Ctl, given: list[str], said: str
) -> None:
    ctl("queue", "create", "shop", "--max-retries", "5", "--ttl", "1h")
    before = ctl.json("queue", "stats", "shop")
    error = ctl("queue", "create", "shop", *given, code=1).stderr
    assert said in error
    assert "add --update to jq-ctl queue create" in error
    assert len(error.splitlines()) == 1
    assert settings(ctl.json("queue", "stats", "shop")) == settings(before)
    assert settings(ctl.json("queue", "create", "shop", *given, "--update")) != settings(before)


def settings(document: dict[str, Any]) -> list[Any]:
    return [document[name] for name in ("mode", "defaults", "retention")]


def test_creating_the_same_queue_again_succeeds_and_says_that_it_exists(ctl: Ctl) -> None:
    same = ("queue", "create", "shop", "--mode", "keyed", "--max-retries", "5", "--ttl", "1h")
    assert ctl.json(*same)["created"] is True
    assert ctl.json(*same)["created"] is False
    assert "queue shop exists already" in ctl(*same).stderr
    assert "queue shop exists already" in ctl("queue", "create", "shop").stderr
    assert ctl.json("queue", "stats", "shop")["defaults"] == {
        "max_retries": 5,
        "ttl_ms": 3_600_000,
    }


def test_an_update_cannot_change_the_mode_and_then_changes_nothing(ctl: Ctl) -> None:
    ctl("queue", "create", "shop", "--mode", "keyed", "--max-retries", "5")
    ctl("queue", "create", "shop", "--mode", "plain", "--max-retries", "7", "--update", code=1)
    assert ctl.json("queue", "stats", "shop")["defaults"]["max_retries"] == 5
