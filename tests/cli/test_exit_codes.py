"""The exit codes that docs/guide/cli.md promises."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
from click.testing import CliRunner

from jobq.cli import options
from jobq.cli.ctl import main
from tests.cli.kit import Ctl

GUIDE = (Path(__file__).parents[2] / "docs/guide/cli.md").read_text()


def test_the_guide_lists_the_codes_that_there_are() -> None:
    table = GUIDE.partition("## Exit codes")[2].partition("\n#")[0]
    listed = {int(code) for code in re.findall(r"^\| (\d+) \|", table, flags=re.MULTILINE)}
    assert listed == {0, options.FAILED, options.USAGE, options.INTERRUPTED}


def test_0_success(ctl: Ctl) -> None:
    ctl("queue", "create", "shop", code=0)
    ctl("job", "list", code=0)  # no job is no failure


@pytest.mark.parametrize(
    "args",
    [["job", "status", "no-such-job"], ["queue", "stats", "no-such-queue"], ["job", "wait", "x"]],
    ids=" ".join,
)
def test_1_not_found_is_a_failure(ctl: Ctl, args: list[str]) -> None:
    ctl("queue", "create", "shop")
    assert len(ctl(*args, code=1).stderr.splitlines()) == 1


def test_1_a_command_that_does_not_apply_is_a_failure(ctl: Ctl) -> None:
    ctl("job", "submit", "add", "--id", "a")
    ctl("job", "rerun", "a", code=1)
    ctl("job", "wait", "a", "--for", "10ms", code=1)


def test_1_a_store_that_does_not_respond_is_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        address = f"127.0.0.1:{deaf.getsockname()[1]}"
        result = CliRunner().invoke(main, ["--server-addr", address, "--timeout", "1s", "status"])
    assert result.exit_code == 1
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "args",
    [
        ["job", "list", "--nonsense"],
        ["job", "nonsense"],
        ["job", "submit", "add", "--payload", "{"],
        ["--url", "nonsense://x", "status"],
        ["--timeout", "soon", "status"],
    ],
    ids=" ".join,
)
def test_2_wrong_usage(ctl: Ctl, args: list[str]) -> None:
    ctl(*args, code=2)
