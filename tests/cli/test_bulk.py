"""`jq-ctl job cancel|rerun|purge --where …`: all jobs of a queue that match."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import waiting
from tests.cli.kit import Ctl


def submit(ctl: Ctl, *lines: dict[str, Any]) -> None:
    """Put jobs into the queue `shop`."""
    ctl("job", "submit", "-q", "shop", "--lines", "-", input="\n".join(map(json.dumps, lines)))


@pytest.fixture
def mixed(ctl: Ctl) -> None:
    """Six waiting jobs of two tasks and two tenants."""
    for tenant in ("acme", "globex"):
        submit(
            ctl,
            *(
                {
                    "name": name,
                    "id": f"{tenant}-{name}-{n}",
                    "kwargs": {"invoice": n},
                    "meta": {"tenant": tenant},
                }
                for name in ("charge.card", "charge.bank", "mail")
                for n in range(2)
            ),
        )


def states(ctl: Ctl) -> dict[str, int]:
    """How many jobs the queue has in each state."""
    counts: dict[str, int] = ctl.json("queue", "stats", "shop")["counts"]
    return {state: n for state, n in counts.items() if n}


@pytest.mark.usefixtures("mixed")
def test_a_dry_run_counts_shows_some_jobs_and_changes_nothing(ctl: Ctl) -> None:
    where = ("-q", "shop", "--where", "name=charge.*", "--where", "meta.tenant=acme")
    document = ctl.json("job", "cancel", *where, "--dry-run")
    assert (document["matched"], document["complete"]) == (4, True)
    assert {job["name"] for job in document["samples"]} == {"charge.card", "charge.bank"}
    shown = ctl("job", "cancel", *where, "--dry-run").stdout
    assert "4 jobs would be changed" in shown
    assert "acme-charge.card-1" in shown
    assert states(ctl) == {"waiting": 12}


@pytest.mark.usefixtures("mixed")
def test_jobs_that_match_are_cancelled_run_again_and_purged(ctl: Ctl) -> None:
    by_argument = ("-q", "shop", "--where", "arg.invoice=1", "--where", "name=*card")
    assert "nothing was done" in ctl("job", "cancel", *by_argument, input="n\n", code=1).stderr
    assert ctl.json("job", "cancel", *by_argument, "--yes")["cancelled"] == 2
    again = ("-q", "shop", "--where", "state=cancelled", "--where", "meta.tenant=acme")
    assert ctl.json("job", "rerun", *again, "-y", "--pace", "50")["rerun"] == 1
    assert states(ctl) == {"waiting": 11, "cancelled": 1}
    gone = ctl("job", "purge", "-q", "shop", "--where", "state=waiting,cancelled", "--yes")
    assert "12 jobs of shop purged" in gone.stdout
    assert states(ctl) == {"cancelled": 11}  # those that were waiting


def test_failed_jobs_are_chosen_by_error_and_age(ctl: Ctl, work: Callable[[], None]) -> None:
    submit(ctl, *({"name": "boom", "id": f"b{n}", "args": [f"cause {n % 2}"]} for n in range(6)))
    work()
    by_error = ("-q", "shop", "--where", "error=ValueError: cause 1")
    assert ctl.json("job", "rerun", *by_error, "--dry-run")["matched"] == 3
    old = (*by_error, "--where", "ended-before=1h")
    assert ctl.json("job", "rerun", *old, "--yes")["rerun"] == 0
    recent = (*by_error, "--where", "ended-after=1h", "--where", "created-after=2020-01-01")
    assert ctl.json("job", "rerun", *recent, "--yes")["rerun"] == 3
    assert states(ctl) == {"failed": 3, "waiting": 3}


@pytest.mark.usefixtures("mixed")
def test_a_listing_takes_patterns_criteria_and_an_order(ctl: Ctl) -> None:
    listed = ctl.json("job", "list", "--name", "*card", "--oldest-first")
    assert [job["id"] for job in listed] == [
        f"{tenant}-charge.card-{n}" for tenant in ("acme", "globex") for n in (0, 1)
    ]
    narrow = ("--where", "meta.tenant=globex", "--where", "arg.invoice=0")
    assert len(ctl.json("job", "list", *narrow)) == 3
    assert len(ctl.json("job", "list", *narrow, "-n", "2")) == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["cancel"], "give ids of jobs, or --where"),
        (["cancel", "j1", "--where", "name=a"], "not both"),
        (["cancel", "j1", "--pace", "5"], "--pace needs --where"),
        (["cancel", "--where", "name=a"], "--where needs --queue"),
        (["cancel", "-q", "shop", "--cascade", "--where", "name=a"], "--cascade"),
        (["purge", "-q", "shop"], "say which jobs to remove"),
        (["rerun", "-q", "shop", "--where", "nmae=a"], "unknown field 'nmae'"),
        (["rerun", "-q", "shop", "--where", "name"], "must look like name=charge"),
        (["rerun", "-q", "shop", "--where", "name=a", "--where", "name=b"], "given twice"),
        (["rerun", "-q", "shop", "--where", "ended-after=soon"], "neither a time"),
        (["rerun", "-q", "shop", "--where", "state=waiting", "-y"], "does not apply to waiting"),
        (["rerun", "-q", "shop", "--where", "state=lost"], "is not one of"),
        (["purge", "-q", "shop", "--where", "name=a", "--cursor", "x", "-y"], "not a cursor"),
    ],
)
@pytest.mark.usefixtures("mixed")
def test_a_mistake_is_explained_before_anything_changes(
    ctl: Ctl, words: list[str], message: str
) -> None:
    assert message in ctl("job", *words, code=2).stderr
    assert states(ctl) == {"waiting": 12}


def test_a_stopped_command_prints_the_cursor_that_continues_it(
    ctl: Ctl, url: str, tmp_path: Path
) -> None:
    submit(ctl, *({"name": "t", "args": [n]} for n in range(60)))
    words = ["job", "cancel", "-q", "shop", "--where", "name=t", "--where", "created-after=1h"]
    command = [sys.executable, "-m", "jobq.cli.ctl", "--url", url, *words, "--yes", "--pace", "20"]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        waiting.wait_until(lambda: states(ctl).get("cancelled", 0) >= 10, "the first jobs")
        running.send_signal(signal.SIGTERM)
        _, errors = running.communicate(timeout=30)
    finally:
        running.kill()
    assert running.returncode == 1, errors
    assert "Traceback" not in errors
    done = states(ctl)["cancelled"]
    found = re.search(r"(\d+) cancelled so far; continue with --cursor (\S+)", errors)
    assert found, errors
    assert int(found[1]) == done < 60
    rest = ctl.json(*words, "--yes", "--cursor", found[2])
    assert (rest["cancelled"], rest["cursor"]) == (60 - done, None)


def test_a_killed_command_is_continued_at_the_last_cursor_that_it_printed(
    ctl: Ctl, url: str, tmp_path: Path
) -> None:
    submit(ctl, *({"name": "t", "args": [n]} for n in range(60)))
    words = ["job", "cancel", "-q", "shop", "--where", "name=t"]
    always = "import jobq.cli.ctl.bulk as b; b._REMARK_S = 0; from jobq.cli.ctl import main; main()"
    command = [sys.executable, "-c", always, "--url", url, *words, "--yes", "--pace", "20"]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=tmp_path)
    try:
        waiting.wait_until(lambda: states(ctl).get("cancelled", 0) >= 10, "the first jobs")
    finally:
        running.kill()
    _, errors = running.communicate(timeout=30)
    cursors = re.findall(r"continue with --cursor (\S+)", errors)
    assert cursors, errors
    done = states(ctl)["cancelled"]
    assert ctl.json(*words, "--yes", "--cursor", cursors[-1])["cancelled"] == 60 - done
    assert states(ctl) == {"cancelled": 60}


def test_a_limited_command_names_the_cursor_that_continues_it(ctl: Ctl) -> None:
    submit(ctl, *({"name": "t", "args": [n]} for n in range(9)))
    words = ["job", "cancel", "-q", "shop", "--where", "state=waiting", "--yes"]
    first = ctl.json(*words, "--limit", "4")
    assert first["cancelled"] == 4
    assert ctl.json(*words, "--cursor", first["cursor"])["cancelled"] == 5


def test_the_user_is_the_actor_of_a_bulk_command(ctl: Ctl) -> None:
    submit(ctl, {"name": "t"})
    ctl("job", "cancel", "-q", "shop", "--where", "name=t", "--yes")
    (cancelled,) = ctl.json("events", "--all", "--kind", "cancelled")
    assert "@" in cancelled["actor"]
