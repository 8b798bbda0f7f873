"""`jq-ctl job …` on jobs in every state."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Callable

import msgspec
import yaml

from jobq import Queue, Worker
from jobq.core.records.jobs import JobSpec, QueueName, RetryData
from jobq.core.rules.new_jobs import Checked
from jobq.stores import open_store
from jobq.stores.sqlite import SqliteStore
from tests.api.deferrals import deferral
from tests.cli.kit import Ctl

Work = Callable[[], None]


def test_status_shows_everything_about_a_job(ctl: Ctl, work: Work) -> None:
    ctl(
        "job",
        "submit",
        "add",
        "-q",
        "shop",
        "--payload",
        "[2, 3]",
        "--id",
        "sum",
        "--priority",
        "4",
    )
    work()
    job = ctl.json("job", "status", "sum")
    assert {
        k: job[k]
        for k in (
            "tenant",
            "queue",
            "id",
            "name",
            "state",
            "args",
            "kwargs",
            "result",
            "priority",
            "attempt",
        )
    } == {
        "tenant": "default",
        "queue": "shop",
        "id": "sum",
        "name": "add",
        "state": "completed",
        "args": [2, 3],
        "kwargs": {},
        "result": 5,
        "priority": 4,
        "attempt": 1,
    }
    assert job["created_at"].endswith("Z")
    assert job["finished_at"] >= job["started_at"] >= job["created_at"]
    assert yaml.safe_load(ctl("job", "status", "sum", "-o", "yaml").stdout) == job
    table = ctl("job", "status", "sum").stdout
    assert "completed" in table
    assert "2, 3" in table


def test_the_options_of_a_job_are_shown_as_they_apply(ctl: Ctl) -> None:
    given = (
        "--max-retries",
        "2",
        "--run-timeout",
        "90",
        "--ttl",
        "1h",
        "--delay",
        "30s",
        "--priority",
        "4",
    )
    ctl("job", "submit", "add", "-q", "shop", "--payload", "[2, 3]", "--id", "given", *given)
    ctl("job", "submit", "add", "-q", "shop", "--payload", "[2, 3]", "--id", "bare")
    options = ctl.json("job", "status", "given")["options"]
    assert options["retry"]["max_retries"] == 2
    assert {
        k: options[k]
        for k in (
            "timeout_ms",
            "ttl_ms",
            "delay_ms",
            "priority",
            "max_stalls",
            "cost",
            "unique",
            "key",
        )
    } == {
        "timeout_ms": 90_000,
        "ttl_ms": 3_600_000,
        "delay_ms": 30_000,
        "priority": 4,
        "max_stalls": "worker",
        "cost": 1,
        "unique": None,
        "key": None,
    }
    bare = ctl.json("job", "status", "bare")["options"]
    assert (bare["retry"], bare["timeout_ms"], bare["max_stalls"], bare["ttl_ms"]) == (
        "worker",
        "worker",
        "worker",
        None,
    )
    table = ctl("job", "status", "given").stdout
    assert "up to 2, after 1.0s, then 2 times longer, up to 1h" in table
    assert ctl("job", "status", "bare").stdout.count("as declared by the task") == 3


def test_a_job_that_failed_often_lists_its_failed_runs(ctl: Ctl, work: Work) -> None:
    ctl("job", "submit", "boom", "-q", "shop", "--id", "bad")
    work()
    ctl("job", "rerun", "bad")
    work()
    errors = ctl.json("job", "status", "bad")["errors"]
    assert [(error["attempt"], error["message"], error["exhausted"]) for error in errors] == [
        (1, "no such tenant", True),
        (2, "no such tenant", True),
    ]
    assert all(error["worker"] for error in errors)
    assert "Failed runs" in ctl("job", "status", "bad").stdout


def test_a_job_shows_its_steps_and_what_it_saved(ctl: Ctl, work: Work) -> None:
    ctl("job", "submit", "order", "-a", "amount=7", "-q", "shop", "--id", "o")
    work()
    found = ctl.json("job", "status", "o")
    assert [(step["name"], step["result"], step["attempt"]) for step in found["steps"]] == [
        ("charge", {"receipt": 7}, 1),
        ("ship", "tracking", 1),
    ]
    assert found["saved"] == "shipped"
    shown = ctl("job", "status", "o").stdout
    assert re.search(r"Steps\n.*STEP.*\n.*charge .*1 .*\{\"receipt\":7\}\n.*ship ", shown), shown
    assert re.search(r"Saved +\"shipped\"", shown)
    assert "Steps" not in ctl("job", "list", "-q", "shop").stdout


def test_a_failed_job_shows_its_traceback(ctl: Ctl, work: Work) -> None:
    ctl("job", "submit", "boom", "-q", "shop", "--id", "bad")
    work()
    shown = ctl("job", "status", "bad").stdout
    assert "error: ValueError: no such tenant" in shown
    assert "Traceback" in shown
    failure = ctl.json("job", "status", "bad")["failure"]
    assert (failure["reason"], failure["type"], failure["message"]) == (
        "error",
        "ValueError",
        "no such tenant",
    )


def test_a_deferred_job_says_so(ctl: Ctl, url: str) -> None:
    async def put_off() -> None:
        async with Queue("shop", url) as queue:

            @queue.task
            async def add(a: int, b: int) -> int:
                return a + b

            async with Worker(queue):
                for id in ("unfit", "unknown"):
                    await deferral(queue.job(id))

    ctl("job", "submit", "add", "-q", "shop", "--payload", "[2, [3]]", "--id", "unfit")
    ctl("job", "submit", "strange", "-q", "shop", "--payload", "[]", "--id", "unknown")
    asyncio.run(put_off())
    for id, why in (
        ("unfit", "argument b of add: expected int, not list"),
        ("unknown", "no worker that claimed it has a task named 'strange'"),
    ):
        job = ctl.json("job", "status", id)
        assert job["state"] == "delayed"
        assert why in job["deferred"]
        assert "Deferred" in ctl("job", "status", id).stdout
        assert "deferred, because" in ctl("job", "list", "-q", "shop", "--state", "delayed").stdout


def test_an_unknown_job_is_a_one_line_error_with_exit_code_1(ctl: Ctl) -> None:
    ctl("queue", "create", "shop")
    result = ctl("job", "status", "ghost", code=1)
    assert result.stderr.startswith("Error: no job ghost in any queue of")
    assert len(result.stderr.splitlines()) == 1
    assert (
        "no job ghost in queue 'shop'" in ctl("job", "status", "ghost", "-q", "shop", code=1).stderr
    )


def test_an_id_in_two_queues_needs_the_queue(ctl: Ctl) -> None:
    for queue in ("left", "right"):
        ctl("job", "submit", "add", "-q", queue, "--id", "same", "--payload", "[1, 1]")
    assert (
        "several queues (left, right): choose one with --queue"
        in ctl("job", "status", "same", code=1).stderr
    )
    assert ctl.json("job", "status", "same", "-q", "right")["queue"] == "right"


def test_jobs_are_listed_by_queue_state_and_name(ctl: Ctl, work: Work) -> None:
    ctl("job", "submit", "add", "-q", "shop", "--payload", "[1, 1]", "--id", "one")
    ctl("job", "submit", "boom", "-q", "shop", "--id", "two")
    work()
    ctl("job", "submit", "add", "-q", "shop", "--payload", "[1, 1]", "--id", "three")
    ctl("job", "submit", "add", "-q", "other", "--payload", "[1, 1]", "--id", "four")

    def ids(*args: str) -> set[str]:
        return {job["id"] for job in ctl.json("job", "list", *args)}

    assert ids() == {"one", "two", "three", "four"}
    assert ids("-q", "shop") == {"one", "two", "three"}
    assert ids("--state", "failed") == {"two"}
    assert ids("--state", "waiting", "--name", "add") == {"three", "four"}
    assert ids("-q", "shop", "--state", "completed") == {"one"}
    lines = ctl("job", "list").stdout.splitlines()
    assert lines[0].split()[:4] == ["ID", "QUEUE", "NAME", "STATE"]
    assert len(lines) == 5


def test_a_long_listing_says_that_there_is_more(ctl: Ctl) -> None:
    ctl("job", "submit", "add", "-q", "shop", "--lines", "-", input="[1, 1]\n" * 7)
    result = ctl("job", "list", "--limit", "5")
    assert len(result.stdout.splitlines()) == 6
    assert "only 5 jobs shown of shop; use --limit to see more" in result.stderr
    assert len(ctl.json("job", "list", "--limit", "700")) == 7


def test_listing_an_unknown_queue_names_the_existing_ones(ctl: Ctl) -> None:
    ctl("queue", "create", "shop")
    assert "no queue 'shoop'" in (error := ctl("job", "list", "-q", "shoop", code=1).stderr)
    assert "its queues are shop" in error


def test_waiting_jobs_are_cancelled_at_once_and_ended_ones_not(ctl: Ctl) -> None:
    ctl("job", "submit", "add", "-q", "shop", "--id", "a", "--payload", "[1, 1]")
    assert "a cancelled" in ctl("job", "cancel", "a").stdout
    assert ctl.json("job", "status", "a")["state"] == "cancelled"
    result = ctl("job", "cancel", "a", code=1)
    assert (
        "a not cancelled: it is cancelled; only unfinished jobs can be cancelled" in result.stdout
    )
    assert ctl.json("job", "cancel", "a", code=1) == [
        {"queue": "shop", "id": "a", "applied": False, "state": "cancelled"}
    ]


def test_an_ended_job_runs_again_by_rerun_and_by_its_alias(ctl: Ctl, work: Work) -> None:
    ctl("job", "submit", "boom", "-q", "shop", "--id", "bad")
    work()
    for command in ("rerun", "retry"):
        ctl("job", command, "bad")
        assert ctl.json("job", "status", "bad")["state"] == "waiting"
        work()
    job = ctl.json("job", "status", "bad")
    assert (job["state"], job["attempt"], job["failures"]) == ("failed", 3, 1)


def test_a_delayed_job_is_promoted(ctl: Ctl) -> None:
    ctl(
        "job",
        "submit",
        "add",
        "-q",
        "shop",
        "--id",
        "later",
        "--delay",
        "1h",
        "--payload",
        "[1, 1]",
    )
    assert ctl.json("job", "status", "later")["state"] == "delayed"
    assert "now waiting" in ctl("job", "promote", "later").stdout
    assert "only delayed jobs" in ctl("job", "promote", "later", code=1).stdout


def test_the_priority_of_a_waiting_job_can_be_changed(ctl: Ctl) -> None:
    ctl("job", "submit", "add", "-q", "shop", "--id", "a", "--payload", "[1, 1]")
    ctl("job", "reprioritise", "a", "--priority", "9")
    assert ctl.json("job", "status", "a")["priority"] == 9
    assert (
        "priority=-1 is out of range"
        in ctl("job", "reprioritise", "a", "--priority", "-1", code=2).stderr
    )


def test_a_job_gets_a_signal_before_it_runs_and_while_it_waits(ctl: Ctl, work: Work) -> None:
    ctl("job", "submit", "approval", "-q", "shop", "--id", "early")
    assert ctl.json("job", "signal", "early", "approved", '{"by": "ada"}') == {
        "queue": "shop",
        "id": "early",
        "signal": "approved",
        "applied": True,
        "state": "waiting",
    }
    ctl("job", "submit", "approval", "-q", "shop", "--id", "late")
    work()
    assert ctl.json("job", "status", "early")["result"] == {"by": "ada"}
    assert ctl.json("job", "status", "late")["state"] == "blocked"
    assert (
        ctl("job", "signal", "late", "approved", "plain text", "-q", "shop").stdout
        == "signal approved sent to late, which is waiting\n"
    )
    work()
    assert ctl.json("job", "status", "late")["result"] == "plain text"


def test_a_signal_without_data_is_none_and_an_ended_job_takes_no_signal(
    ctl: Ctl, work: Work
) -> None:
    ctl("job", "submit", "approval", "-q", "shop", "--id", "one")
    ctl("job", "signal", "one", "approved")
    work()
    assert ctl.json("job", "status", "one")["result"] is None
    refused = ctl("job", "signal", "one", "approved", code=1).stdout
    assert (
        refused
        == "signal approved not sent: only unfinished jobs take signals, and one is completed\n"
    )
    ctl("job", "submit", "approval", "-q", "shop", "--id", "two")
    assert "reserved" in ctl("job", "signal", "two", "$jobq.child 0", "x", code=2).stderr


def test_removing_asks_first(ctl: Ctl, work: Work) -> None:
    ctl("job", "submit", "add", "-q", "shop", "--id", "a", "--payload", "[1, 1]")
    work()
    assert "nothing was done" in ctl("job", "remove", "a", input="n\n", code=1).stderr
    assert "nothing was done" in ctl("job", "remove", "a", input="", code=1).stderr
    ctl("job", "remove", "a", input="y\n")
    ctl("job", "status", "a", code=1)


def test_the_exit_code_of_wait_says_how_the_jobs_ended(ctl: Ctl, work: Work) -> None:
    ctl("job", "submit", "add", "-q", "shop", "--id", "good", "--payload", "[1, 1]")
    ctl("job", "submit", "boom", "-q", "shop", "--id", "bad")
    work()
    ctl(
        "job", "submit", "add", "-q", "shop", "--id", "late", "--delay", "1h", "--payload", "[1, 1]"
    )
    ctl("job", "wait", "good")
    ctl("job", "wait", "good", "bad", code=1)
    assert "still unfinished: late" in ctl("job", "wait", "late", "--for", "50ms", code=1).stderr


def test_logs_are_printed(ctl: Ctl, work: Work) -> None:
    ctl("job", "submit", "chatty", "-q", "shop", "--id", "talk", "--payload", "[3]")
    work()
    assert ctl("job", "logs", "talk").stdout == "line 0\nline 1\nline 2\n"
    assert ctl("job", "logs", "talk", "--follow").stdout == "line 0\nline 1\nline 2\n"
    assert ctl.json("job", "logs", "talk") == ["line 0", "line 1", "line 2"]
    assert ctl.json("job", "logs", "talk", "--tail", "2") == ["line 1", "line 2"]
    assert ctl.json("job", "logs", "talk", "--tail", "9") == ["line 0", "line 1", "line 2"]
    assert ctl.json("job", "logs", "talk", "--head", "1") == ["line 0"]
    assert ctl("job", "logs", "talk", "--follow", "--tail", "1").stdout == "line 2\n"
    assert ctl("job", "logs", "talk", "--follow", "--tail", "0").stdout == ""
    assert "--head cannot be combined" in (
        ctl("job", "logs", "talk", "--head", "1", "--tail", "1", code=2).stderr
    )


def test_users_texts_are_not_interpreted_as_markup_or_escapes(ctl: Ctl) -> None:
    ctl(
        "job",
        "submit",
        "add",
        "-q",
        "shop",
        "--id",
        "[red]x[/red]",
        "--payload",
        '["[bold]\\u001b[31m", 1]',
    )
    assert "[red]x[/red]" in (shown := ctl("job", "list").stdout)
    assert "\x1b" not in shown
    assert "[bold]" in shown


def test_a_damaged_job_is_listed_as_damaged_beside_others(ctl: Ctl, url: str) -> None:
    async def put() -> None:
        shop = QueueName("default", "shop")
        async with open_store(url) as store:
            good = JobSpec(queue=shop, id="good", name="add", payload=b"[[2,3],{}]")
            nan = msgspec.structs.replace(good, id="nan", retry=RetryData(factor=math.nan))
            torn = msgspec.structs.replace(good, id="torn", timeout_ms=1000)
            await store.put(Checked([good, nan, torn]))  # past the check, which refuses nan
            assert isinstance(store, SqliteStore)
            tear = "UPDATE jobs SET options = x'ff' WHERE id = 'torn'"
            await store._write(lambda tx: tx.execute(tear).fetchall())

    asyncio.run(put())
    listed = {job["id"]: job for job in ctl.json("job", "list", "-q", "shop")}
    assert {id: job["state"] for id, job in listed.items()} == dict.fromkeys(
        ("good", "nan", "torn"), "waiting"
    )
    assert ctl("job", "list", "-q", "shop").stdout.count("Unreadable") == 2
    for id in ("nan", "torn"):
        assert ctl.json("job", "status", id)["failure"]["type"] == "Unreadable"
        assert "cannot be read" in ctl("job", "status", id).stdout
