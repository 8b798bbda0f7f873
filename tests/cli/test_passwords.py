"""No command prints a password. Every command is run with a password in its URL."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from jobq.cli.ctl import main as ctl
from jobq.cli.worker import main as worker
from jobq.relay.cli import main as relay
from tests.cli.kit import commands_of
from tests.stores.valkey import servers

SECRET = "hunter2/?"
QUOTED = "hunter2%2F%3F"


def leaves(
    command: click.Command, path: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command of the tree, with the words to call it."""
    if isinstance(command, click.Group):
        for name, below in commands_of(command):
            yield from leaves(below, (*path, name))
    else:
        yield path, command


def words(command: click.Command) -> list[str]:
    """A value for each required argument and option, with the shortest possible waits."""
    given: list[str] = []
    for param in command.params:
        if isinstance(param, click.Argument) and param.required:
            given.append("shop")
        elif isinstance(param, click.Option):
            name = max(param.opts, key=len)
            if param.required:
                given += [
                    name,
                    param.type.choices[0] if isinstance(param.type, click.Choice) else "1",
                ]
            elif name in ("--yes", "--once", "--all"):
                given.append(name)
            elif name in ("--wait", "--for"):
                given += [name, "0.01"]
            elif name == "--times":
                given += [name, "1"]
            elif name == "--host":  # refused without sign-in, so the dashboard does not stay
                given += [name, "0.0.0.0"]
    return given


COMMANDS = [(path, words(command)) for path, command in leaves(ctl)]


def everything_said(*args: str) -> str:
    """The output and errors of a jq-ctl command, with valid arguments and with extra ones."""
    said = ""
    for more in (
        (),
        ("-o", "json"),
        ("-o", "yaml"),
        ("--no-such-option",),
        ("an", "argument", "too", "many"),
    ):
        result = CliRunner().invoke(ctl, [*args, *more], input="")
        assert result.exception is None or isinstance(result.exception, SystemExit), (
            result.exception
        )
        said += result.output
    return said


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server that needs a password, and its URL with the password."""
    server = servers.Server(
        servers.valkey_or_skip(), tmp_path_factory.mktemp("guarded"), "--requirepass", SECRET
    )
    server.start()
    yield server.url.replace("valkey://", f"valkey://:{QUOTED}@")
    server.kill()


@pytest.mark.parametrize(("path", "given"), COMMANDS, ids=[" ".join(path) for path, _ in COMMANDS])
def test_no_command_of_jq_ctl_shows_the_password_of_a_store_that_replies(
    guarded: str, path: tuple[str, ...], given: list[str]
) -> None:
    said = everything_said("--url", guarded, "--timeout", "2s", *path, *given)
    assert "hunter2" not in said
    assert said


@pytest.mark.parametrize(("path", "given"), COMMANDS, ids=[" ".join(path) for path, _ in COMMANDS])
def test_no_command_of_jq_ctl_shows_the_password_of_an_unavailable_store(
    path: tuple[str, ...], given: list[str]
) -> None:
    said = everything_said(
        "--url", f"valkey://me:{QUOTED}@127.0.0.1:1", "--timeout", "50ms", *path, *given
    )
    assert "hunter2" not in said


@pytest.mark.parametrize(
    "url",
    [
        "valkey://me:hunter2@host:port",
        "valkey://me:hunter2/@host",
        "valkey://me:hunter2@host?wait=hunter",
        "nosuch://me:hunter2@host",
        "sqlite://me:hunter2@/jobs.db",
        "valkey://me: hunter2@host:port",
        "me:hunter2@host",
        "hunter2@host",
    ],
)
def test_a_wrong_url_is_quoted_without_its_password(url: str) -> None:
    for command in (["status"], ["job", "status", "x"], ["queue", "list"]):
        result = CliRunner().invoke(ctl, ["--url", url, *command])
        assert result.exit_code != 0
        assert "hunter2" not in result.output
    assert (
        "hunter2"
        not in CliRunner().invoke(relay, ["--url", url, "--to", "files:///tmp/x", "--once"]).output
    )
    if "://" in url and " " not in url:  # a URL in the wrong place is recognized as a URL
        assert "hunter2" not in CliRunner().invoke(ctl, [url]).output
        assert "hunter2" not in CliRunner().invoke(relay, [url]).output


@pytest.mark.parametrize(
    "target",
    [
        "kafka://me:hunter2@host:9092/topic",
        "kafka://host:9092?sasl.password=hunter2",
        "kafka://host:9092/topic?sasl.password=hunter2&no.such.option=1",
        "nosuch://me:hunter2@host/topic",
        "files://me:hunter2@host/folder",
    ],
)
def test_the_relay_does_not_show_the_password_of_its_target(tmp_path: Path, target: str) -> None:
    result = CliRunner().invoke(
        relay, ["--url", f"sqlite:///{tmp_path}/jobs.db", "--to", target, "--once"]
    )
    assert result.exit_code != 0
    assert isinstance(result.exception, SystemExit)
    assert "hunter2" not in result.output


def test_kafkas_credentials_come_from_the_environment_and_are_never_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jobq.relay.kafka import KafkaTarget

    monkeypatch.setenv("JQ_KAFKA_SASL_USERNAME", "me")
    monkeypatch.setenv("JQ_KAFKA_SASL_MECHANISM", "SCRAM-SHA-256")
    said = CliRunner().invoke(
        relay,
        ["--url", f"sqlite:///{tmp_path}/jobs.db", "--to", "kafka://host:9092/topic", "--once"],
    )
    assert said.exit_code == 1
    assert "JQ_KAFKA_SASL_PASSWORD is not set" in said.output
    monkeypatch.setenv("JQ_KAFKA_SASL_PASSWORD", "hunter2")
    target = KafkaTarget("kafka://host:9092/topic")
    assert {
        name: target.config[name]
        for name in ("security.protocol", "sasl.mechanism", "sasl.username", "sasl.password")
    } == {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "SCRAM-SHA-256",
        "sasl.username": "me",
        "sasl.password": "hunter2",
    }
    assert (
        KafkaTarget("kafka://host:9092/topic?security.protocol=SASL_PLAINTEXT").config[
            "security.protocol"
        ]
        == "SASL_PLAINTEXT"
    )
    assert "hunter2" not in target.name


def test_a_worker_does_not_show_the_password_of_its_store() -> None:
    apps = Path(__file__).parent / "apps"
    url = f"valkey://me:{QUOTED}@127.0.0.1:1"
    for args in (
        ["shopapp:shop", "--wait", "200ms"],
        ["shopapp:shop", "--wait", "200ms", "--log-format", "json"],
        ["--no-such"],
    ):
        process = subprocess.run(
            [sys.executable, "-m", "jobq.cli.worker", "--url", url, "--log-level", "trace", *args],
            cwd=apps,
            env={**os.environ, "JQ_URL": url},
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert process.returncode != 0
        assert "hunter2" not in process.stdout + process.stderr
    assert "hunter2" not in CliRunner().invoke(worker, [url]).output


@pytest.mark.parametrize("command", [ctl, worker, relay], ids=["jq-ctl", "jq-worker", "jq-relay"])
def test_every_command_prints_its_version(command: click.Command) -> None:
    from jobq import __version__

    result = CliRunner().invoke(command, ["--version"])
    assert (result.exit_code, __version__ in result.output) == (0, True)
