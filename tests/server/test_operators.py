"""jq-ctl over a jq-server: the commands that an operator knows, at another address."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from jobq.cli.ctl import main
from jobq.core.version import __version__
from tests.server.serving import RunningServer, complete, fail


class Operator:
    """Runs jq-ctl with --server-addr."""

    def __init__(self, address: str) -> None:
        self.address = address

    def __call__(self, *args: str, code: int = 0) -> str:
        result = CliRunner().invoke(main, ["--server-addr", self.address, *args])
        assert result.exit_code == code, result.output
        return result.stdout if code == 0 else result.stderr

    def json(self, *args: str) -> Any:
        return json.loads(self(*args, "-o", "json"))


@pytest.fixture
def ctl(running_server: RunningServer) -> Operator:
    return Operator(running_server.address)


def test_the_versions_of_both_sides_are_printed(ctl: Operator) -> None:
    found = ctl.json("version")
    assert found["server"] == found["jobq"] == __version__


def test_a_server_that_is_not_there_is_an_error_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
    error = Operator(address)("version", "--timeout", "2s", code=1)
    assert len(error.splitlines()) == 1


def test_jobs_are_submitted_listed_by_status_and_run_again(
    ctl: Operator, running_server: RunningServer
) -> None:
    ctl("job", "submit", "--queue", "shop", "add", "--payload", "[1, 2]", "--id", "a")
    ctl("job", "submit", "--queue", "shop", "add", "--payload", "[3, 4]", "--id", "b")
    complete(running_server, "shop")
    fail(running_server, "shop", "boom")

    def ids(status: str) -> list[str]:
        return [job["id"] for job in ctl.json("job", "list", "--status", status)]

    assert (ids("done"), ids("failed"), ids("pending")) == (["a"], ["b"], [])
    assert ctl.json("job", "status", "b")["failure"]["message"] == "boom"
    ctl("job", "retry", "b")
    assert ids("pending") == ["b"]


def test_a_queue_is_created_with_defaults_paused_shown_and_deleted(ctl: Operator) -> None:
    made = ctl.json("queue", "create", "shop", "--max-retries", "7", "--ttl", "60")
    assert made["defaults"] == {"max_retries": 7, "ttl_ms": 60_000}
    ctl("queue", "pause", "shop")
    assert ctl.json("queue", "stats", "shop")["paused"] is True
    assert ctl.json("status")["notices"] == ["shop is paused"]
    ctl("queue", "delete", "shop", "--yes")
    assert ctl.json("queue", "list") == []


def test_a_queue_that_exists_otherwise_is_refused_over_a_server_as_well(ctl: Operator) -> None:
    ctl("queue", "create", "shop", "--max-retries", "7")
    error = ctl("queue", "create", "shop", "--max-retries", "8", code=1)
    assert "max_retries is 7, not 8" in error
    assert ctl.json("queue", "create", "shop", "--max-retries", "7")["created"] is False
    changed = ctl.json("queue", "create", "shop", "--max-retries", "8", "--update")
    assert changed["defaults"]["max_retries"] == 8


def test_a_job_is_submitted_by_its_queue_and_a_file_alone(ctl: Operator, tmp_path: Path) -> None:
    (tmp_path / "mail.json").write_text('{"to": "ann@example.com"}')
    payload = ("--payload", f"@{tmp_path}/mail.json")
    limits = ("--priority", "9", "--max-retries", "2")
    job = ctl.json("job", "submit", "--queue", "emails", *payload, *limits)
    assert (job["name"], job["queue"], job["priority"]) == ("emails", "emails", 9)
    assert job["kwargs"] == {"to": "ann@example.com"}


def test_top_shows_what_the_server_has(ctl: Operator, running_server: RunningServer) -> None:
    ctl("job", "submit", "--queue", "shop", "add", "--id", "a")
    fail(running_server, "shop", "boom")
    seen = ctl.json("top", "--times", "1")
    assert seen["queues"][0]["counts"]["failed"] == 1
    assert [job["failure"]["message"] for job in seen["failures"]] == ["boom"]
