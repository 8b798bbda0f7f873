"""`jq-ctl job submit`: one job, and many."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from jobq import Queue, Unique, Worker
from tests.cli.kit import Ctl


def test_arguments_come_as_an_array_an_object_a_file_or_one_by_one(
    ctl: Ctl, tmp_path: Path
) -> None:
    (tmp_path / "args.json").write_text('{"invoice": 7}')

    def submit(*args: str, input: str | None = None) -> Any:
        return ctl.json("job", "submit", "charge", "-q", "shop", *args, input=input)

    assert submit("--payload", '["acme", 7]')["args"] == ["acme", 7]
    assert submit("--payload", '{"invoice": 7}')["kwargs"] == {"invoice": 7}
    assert submit("--payload", f"@{tmp_path}/args.json")["kwargs"] == {"invoice": 7}
    assert submit("--payload", "-", input='["from stdin"]')["args"] == ["from stdin"]
    assert submit("-a", "tenant=acme", "-a", "invoice=7", "-a", "tags=[1]")["kwargs"] == {
        "tenant": "acme",
        "invoice": 7,
        "tags": [1],
    }


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--payload", "{"], "--payload is not valid JSON"),
        (["--payload", "7"], "--payload must be a JSON array or object"),
        (["--payload", "@nowhere.json"], "cannot read nowhere.json"),
        (["-a", "seven"], "--arg 'seven' must look like name=value"),
        (["--priority", "-1"], "priority=-1 is out of range"),
        (["--priority", "x"], "'x' is not a valid integer"),
        (["--delay", "soon"], "'soon' is not a duration"),
        (["--ttl", "0"], "ttl=0.0 is not a time span"),
        (["--id", "a{b"], "braces are not allowed"),
        (["--id", "x" * 257], "too long"),
        (["--delay", "1s", "--at", "2030-01-01T00:00"], "give one of"),
        (["--cost", "0"], "cost=0 is out of range"),
        (["--max-stalls", "-1"], "max_stalls=-1 is out of range"),
        (["--unique", "invoice"], "Unique field 'invoice' is not an argument of charge"),
        (["--unique", "a,,b", "-a", "a=1"], "Unique field '' is not the name of a parameter"),
        (["--unique", "*", "--payload", "[7]"], "needs all of them by name"),
        (["--unique", "*", "--unique-mode", "throttle"], "needs period="),
        (["--unique-period", "1h"], "--unique-mode and --unique-period need --unique"),
    ],
)
def test_bad_input_is_a_one_line_usage_error_and_stores_nothing(
    ctl: Ctl, args: list[str], said: str
) -> None:
    ctl("queue", "create", "shop")
    result = ctl("job", "submit", "charge", "-q", "shop", *args, code=2)
    assert said in result.stderr
    assert ctl.json("job", "list") == []


def test_a_unique_job_is_added_once_and_shares_its_lock_with_the_app(ctl: Ctl, url: str) -> None:
    def submit(*args: str) -> Any:
        return ctl.json("job", "submit", "charge", "-q", "shop", *args)

    first = submit("-a", "invoice=7", "-a", "note=a", "--unique", "invoice")
    again = submit("-a", "invoice=7", "-a", "note=b", "--unique", "invoice")
    assert (again["id"], again["duplicate"]) == (first["id"], True)
    assert not submit("-a", "invoice=8", "--unique", "invoice")["duplicate"]
    assert not submit("-a", "invoice=7", "-a", "note=z", "--unique", "*")["duplicate"]
    assert submit("-a", "note=z", "-a", "invoice=7", "--unique", "*")["duplicate"]

    queue = Queue("shop", url)

    @queue.task(unique=Unique("invoice"))
    async def charge(invoice: int, note: str = "") -> None: ...

    async def from_the_app() -> str:
        async with queue:
            return (await charge.enqueue(7, note="c")).id

    assert asyncio.run(from_the_app()) == first["id"]


def test_a_debounced_job_gets_the_newest_data(ctl: Ctl) -> None:
    def submit(note: str) -> Any:
        return ctl.json(
            *("job", "submit", "charge", "-q", "shop", "-a", "invoice=7", "-a", f"note={note}"),
            *("--unique", "invoice", "--unique-mode", "debounce", "--unique-period", "1h"),
        )

    assert submit("a")["id"] == submit("b")["id"]
    (job,) = ctl.json("job", "list")
    assert (job["state"], job["kwargs"]["note"]) == ("delayed", "b")


def test_cost_and_stalls_are_stored_with_the_job(ctl: Ctl) -> None:
    job = ctl.json("job", "submit", "charge", "-q", "shop", "--cost", "3", "--max-stalls", "1")
    assert (job["options"]["cost"], job["options"]["max_stalls"]) == (3, 1)


def test_lines_may_say_what_makes_them_unique(ctl: Ctl) -> None:
    def submit(*lines: dict[str, Any], code: int = 0) -> Any:
        return ctl(
            *("job", "submit", "charge", "-q", "shop", "--lines", "-", "-o", "json"),
            input="\n".join(json.dumps(line) for line in lines),
            code=code,
        )

    unique = {"fields": ["invoice"], "mode": "throttle", "period": 3600}
    result = submit(
        {"kwargs": {"invoice": 7}, "unique": unique},
        {"kwargs": {"invoice": 7, "note": "b"}, "unique": unique},
        {"kwargs": {"invoice": 7, "note": "b"}, "unique": True},
    )
    assert json.loads(result.stdout) == {"queue": "shop", "accepted": 2, "duplicates": 1}
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"unique": {"field": "x"}}, "line 1: \"unique\" has an unknown field 'field'"),
        ({"unique": {"fields": "x"}}, 'line 1: "fields" of "unique" must be an array'),
        ({"unique": {"mode": "often"}}, "line 1: Unique mode"),
        ({"unique": True, "args": [7]}, "line 1: a unique job that compares all arguments"),
        ({"unique": 7}, "line 1: unique=7"),
    ]
    for wrong, said in wrongs:
        assert said in submit(wrong, code=2).stderr


@pytest.mark.parametrize(
    "given", [[], ["--queue", "shop"], ["--payload", "[]"], ["-q", "shop", "-a", "a=1"]]
)
def test_a_job_without_a_task_is_wrong_usage(ctl: Ctl, given: list[str]) -> None:
    assert "no task: give its NAME" in ctl("job", "submit", *given, code=2).stderr


def test_an_empty_task_name_is_refused_and_is_not_the_name_of_the_queue(ctl: Ctl) -> None:
    ctl("job", "submit", "", "-q", "shop", "--payload", "[]", code=2)


@pytest.mark.parametrize("source", ["text", "file"])
def test_a_job_without_a_name_runs_the_task_that_has_the_name_of_its_queue(
    ctl: Ctl, url: str, tmp_path: Path, source: str
) -> None:
    payload = '{"to": "ann@example.com", "task": "is an argument like any other"}'
    (tmp_path / "mail.json").write_text(payload)
    given = payload if source == "text" else f"@{tmp_path}/mail.json"
    limits = ("--priority", "9", "--max-retries", "2")
    made = ctl.json("job", "submit", "--queue", "emails", "--payload", given, *limits)
    assert (made["name"], made["priority"]) == ("emails", 9)
    assert made["options"]["retry"]["max_retries"] == 2

    async def run() -> Any:
        queue = Queue("emails", url)

        @queue.task(name="emails")
        async def send(**mail: str) -> dict[str, str]:
            return mail

        async with queue, Worker(queue):
            return await queue.job(made["id"]).result(timeout=30)

    assert asyncio.run(run()) == json.loads(payload)


def test_the_same_id_twice_is_one_job(ctl: Ctl) -> None:
    assert ctl.json("job", "submit", "charge", "-q", "shop", "--id", "inv-7")["duplicate"] is False
    assert ctl.json("job", "submit", "charge", "-q", "shop", "--id", "inv-7")["duplicate"] is True
    assert (
        "nothing was added: job"
        in ctl("job", "submit", "charge", "-q", "shop", "--id", "inv-7").stderr
    )


def test_a_time_may_have_an_offset(ctl: Ctl) -> None:
    job = ctl.json("job", "submit", "charge", "-q", "shop", "--at", "2099-01-01T00:00:00Z")
    assert (job["state"], job["due_at"]) == ("delayed", "2099-01-01T00:00:00.000Z")


def test_lines_have_names_arguments_and_options(ctl: Ctl, tmp_path: Path) -> None:
    lines = [
        '{"name": "charge", "kwargs": {"invoice": 8}, "id": "inv-8", "priority": 5}',
        "",
        '["acme", 9]',
        '{"args": [10], "id": "inv-10", "at": "2099-01-01T00:00:00+00:00"}',
    ]
    (tmp_path / "jobs.jsonl").write_text("\n".join(lines))
    submit = [
        "job",
        "submit",
        "charge",
        "-q",
        "shop",
        "--priority",
        "2",
        "--lines",
        f"{tmp_path}/jobs.jsonl",
    ]
    assert ctl.json(*submit) == {"queue": "shop", "accepted": 3, "duplicates": 0}
    first = ctl.json("job", "status", "inv-8")
    assert (first["kwargs"], first["priority"]) == ({"invoice": 8}, 5)
    assert ctl.json("job", "status", "inv-10")["due_at"] == "2099-01-01T00:00:00.000Z"
    assert {tuple(job["args"]): job["priority"] for job in ctl.json("job", "list")} == {
        (): 5,
        ("acme", 9): 2,
        (10,): 2,
    }
    assert "1 job accepted in shop, 2 already there" in ctl(*submit).stdout


def test_thousands_of_lines_go_in_batches(ctl: Ctl) -> None:
    lines = "\n".join(json.dumps({"args": [n], "id": f"job-{n}"}) for n in range(2500))
    assert (
        ctl.json("job", "submit", "charge", "-q", "shop", "--lines", "-", input=lines)["accepted"]
        == 2500
    )
    assert ctl.json("queue", "stats", "shop")["counts"]["waiting"] == 2500


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "line 1002 is not valid JSON"),
        ("7", "line 1002 must be an array of arguments or an object, not 7"),
        ('{"invoice": 7}', "line 1002 has an unknown field 'invoice'"),
        ('{"args": {}}', 'line 1002: "args" must be an array'),
        ('{"priority": -1}', "line 1002: priority=-1"),
        ('{"at": "tomorrow"}', 'line 1002: "at" must be an ISO 8601 time'),
        ('{"delay": "1h"}', "line 1002: delay='1h' is not a time"),
    ],
)
def test_a_bad_line_is_reported_with_the_progress_before_it(ctl: Ctl, line: str, said: str) -> None:
    lines = "[1]\n" * 1001 + line + "\n[2]\n"
    result = ctl("job", "submit", "charge", "-q", "shop", "--lines", "-", input=lines, code=2)
    assert said in result.stderr
    assert "(1,000 jobs submitted before it)" in result.stderr


def test_lines_without_a_task_are_refused(ctl: Ctl) -> None:
    assert (
        "line 1 has no task"
        in ctl("job", "submit", "-q", "shop", "--lines", "-", input="[1]", code=2).stderr
    )


def test_lines_and_arguments_cannot_be_combined(ctl: Ctl) -> None:
    assert (
        "--lines cannot be combined with"
        in ctl("job", "submit", "x", "--lines", "-", "--payload", "[]", input="", code=2).stderr
    )


def test_meta_comes_from_the_command_line_and_from_lines(ctl: Ctl, tmp_path: Path) -> None:
    ctl(
        "job",
        "submit",
        "add",
        "-q",
        "shop",
        "--payload",
        "[1, 2]",
        "--id",
        "one",
        "--meta",
        "trace=t1",
        "--meta",
        "who=a=b",
    )
    assert ctl.json("job", "status", "one")["meta"] == {"trace": "t1", "who": "a=b"}
    assert "trace=t1, who=a=b" in ctl("job", "status", "one").stdout
    lines = tmp_path / "jobs.jsonl"
    lines.write_text(
        '{"name": "add", "args": [1, 2], "id": "two", "meta": {"trace": "t2"}}\n'
        '{"name": "add", "id": "three"}\n'
    )
    ctl("job", "submit", "-q", "shop", "--lines", str(lines), "--meta", "trace=t0")
    assert [ctl.json("job", "status", id)["meta"] for id in ("two", "three")] == [
        {"trace": "t2"},
        {"trace": "t0"},
    ]
    assert (
        "--meta 'trace' must look like name=text"
        in ctl("job", "submit", "add", "--meta", "trace", code=2).stderr
    )
    assert "is too long" in ctl("job", "submit", "add", "--meta", f"{'n' * 65}=x", code=2).stderr
