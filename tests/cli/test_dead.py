"""`jq-ctl dead …`: failed jobs."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.cli.kit import Ctl

Work = Callable[[], None]


@pytest.fixture
def dead(ctl: Ctl, work: Work) -> None:
    """Seven failed jobs with two causes, and a completed job."""
    lines: list[dict[str, Any]] = [
        {
            "name": "boom",
            "id": f"bad-{n}",
            "args": ["no such tenant" if n < 5 else f"bad invoice {n}"],
        }
        for n in range(7)
    ]
    lines.append({"name": "add", "id": "good", "args": [1, 1]})
    ctl("job", "submit", "-q", "shop", "--lines", "-", input="\n".join(map(json.dumps, lines)))
    work()


@pytest.mark.usefixtures("dead")
def test_dead_letters_are_listed_with_their_errors(ctl: Ctl) -> None:
    assert {job["id"] for job in ctl.json("dead", "list")} == {f"bad-{n}" for n in range(7)}
    shown = ctl("dead", "list", "-n", "2").stdout
    assert len(shown.splitlines()) == 3
    assert "ValueError: " in shown


@pytest.mark.usefixtures("dead")
def test_dead_letters_are_counted_by_cause(ctl: Ctl) -> None:
    groups = ctl.json("dead", "list", "--by-error")
    assert sum(group["jobs"] for group in groups) == 7
    assert all(
        group["name"] == "boom" and group["latest"]["failure"]["type"] == "ValueError"
        for group in groups
    )
    assert "EXAMPLE" in ctl("dead", "list", "--by-error").stdout


@pytest.mark.usefixtures("dead")
def test_dead_letters_run_again_one_by_one_or_all(ctl: Ctl) -> None:
    assert ctl.json("dead", "rerun", "bad-1") == {"matched": 1, "rerun": 1}
    assert "nothing was done" in ctl("dead", "rerun", "--all", input="n\n", code=1).stderr
    assert ctl.json("dead", "retry", "--all", "--yes") == {"matched": 6, "rerun": 6}
    assert ctl.json("queue", "stats", "shop")["counts"]["waiting"] == 7
    assert ctl.json("dead", "rerun", "--all") == {"matched": 0, "rerun": 0}


@pytest.mark.usefixtures("dead")
def test_all_dead_letters_of_a_task_are_those_that_are_listed(
    ctl: Ctl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobq.operations.bulk.PAGE", 2)
    ctl("queue", "create", "office")
    assert ctl.json("dead", "rerun", "--all", "--name", "bo", "--yes") == {"matched": 0, "rerun": 0}
    assert len(ctl.json("dead", "list", "--name", "bo*")) == 7
    assert ctl.json("dead", "rerun", "--all", "--name", "bo*", "--yes") == {
        "matched": 7,
        "rerun": 7,
    }
    assert ctl.json("dead", "list") == []


@pytest.mark.usefixtures("dead")
def test_a_job_that_has_not_failed_is_skipped(ctl: Ctl) -> None:
    result = ctl("dead", "purge", "good", "bad-0", "--yes", code=1)
    assert "skipped, because they are not failed: good" in result.stderr
    assert ctl.json("job", "status", "good")["state"] == "completed"
    ctl("job", "status", "bad-0", code=1)


@pytest.mark.usefixtures("dead")
def test_dead_letters_are_purged_by_age(ctl: Ctl) -> None:
    assert ctl.json("dead", "purge", "--all", "--older-than", "1h", "--yes") == {
        "matched": 0,
        "purged": 0,
    }
    assert ctl.json("dead", "purge", "--all", "--name", "other", "--yes") == {
        "matched": 0,
        "purged": 0,
    }
    assert ctl.json("dead", "purge", "--all", "--yes") == {"matched": 7, "purged": 7}
    assert "no failed jobs" in ctl("dead", "list").stderr


def test_ids_or_all_must_be_given_and_not_both(ctl: Ctl) -> None:
    ctl("queue", "create", "shop")
    for args in (["rerun"], ["purge"], ["rerun", "x", "--all"]):
        assert "give ids of failed jobs, or --all" in ctl("dead", *args, code=2).stderr
