"""What holds for every command of jq-ctl."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

from jobq.cli.ctl import main
from tests.cli.kit import Ctl, commands_of


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(command, click.Group):
        return [path]
    return [leaf for name, sub in commands_of(command) for leaf in leaves(sub, (*path, name))]


@pytest.mark.parametrize("path", leaves(main), ids=" ".join)
def test_every_command_has_help_that_says_what_it_does(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, [*path, "--help"])
    assert result.exit_code == 0
    assert "Global options:" in result.output
    assert "--output" in result.output
    assert "Examples:" in result.output


def test_global_options_are_accepted_anywhere_and_the_last_one_wins(ctl: Ctl) -> None:
    ctl("queue", "create", "shop")
    for args in (
        ["-o", "json", "queue", "list"],
        ["queue", "-o", "json", "list"],
        ["-o", "yaml", "queue", "list", "-o", "json"],
    ):
        assert json.loads(ctl(*args).stdout)[0]["queue"] == "shop"


def test_the_command_line_overrides_the_environment(
    ctl: Ctl, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctl("queue", "create", "shop")
    monkeypatch.setenv("JQ_URL", url)
    monkeypatch.setenv("JQ_OUTPUT", "json")

    def run(*args: str) -> str:
        return CliRunner().invoke(main, args).stdout

    assert json.loads(run("queue", "list"))[0]["queue"] == "shop"
    assert yaml.safe_load(run("queue", "list", "--output", "yaml"))[0]["queue"] == "shop"
    assert run("--output", "table", "queue", "list").startswith("QUEUE")


def test_tenants_do_not_see_each_other(ctl: Ctl) -> None:
    ctl("job", "submit", "add", "--id", "mine", "--tenant", "acme")
    assert ctl.json("--tenant", "acme", "job", "status", "mine")["tenant"] == "acme"
    ctl("job", "status", "mine", code=1)
    assert ctl.json("queue", "list") == []


def test_a_missing_file_is_an_error_and_is_not_created(tmp_path: Path) -> None:
    path = tmp_path / "typo.db"
    result = CliRunner().invoke(main, ["--url", f"sqlite:///{path}", "queue", "list"])
    assert result.exit_code == 2
    assert f"the file {path} does not exist" in result.stderr
    assert not path.exists()


@pytest.mark.parametrize("url", ["nonsense", "ftp://host", "sqlite://", "valkey+nothing://x"])
def test_a_bad_url_is_wrong_usage_and_the_error_shows_a_valid_one(url: str) -> None:
    result = CliRunner().invoke(main, ["--url", url, "status"])
    assert result.exit_code == 2, result.output
    assert len(result.stderr.splitlines()) == 1


def test_status_shows_what_needs_attention(ctl: Ctl) -> None:
    ctl("job", "submit", "add", "-q", "shop")
    ctl("queue", "create", "calm")
    ctl("queue", "pause", "calm")
    status = ctl.json("status")
    assert status["counts"]["waiting"] == 1
    assert status["notices"] == ["calm is paused", "shop has 1 job waiting and no worker"]
    assert {q["queue"] for q in status["queues"]} == {"calm", "shop"}
    assert "1 waiting" in ctl("status").stdout


def test_version_needs_no_store() -> None:
    result = CliRunner().invoke(main, ["--url", "nonsense", "version", "-o", "json"])
    assert set(json.loads(result.stdout)) == {"jobq", "python", "platform"}


def test_a_closed_pipe_causes_no_traceback(ctl: Ctl, url: str) -> None:
    ctl("job", "submit", "add", "--lines", "-", input="[1, 2]\n" * 2000)
    listing = [sys.executable, "-m", "jobq.cli.ctl", "--url", url]
    listing += ["job", "list", "--limit", "2000", "-o", "yaml"]
    command = f"{shlex.join(listing)} | head -1"
    result = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in result.stderr
    assert result.stdout.startswith("- tenant")
