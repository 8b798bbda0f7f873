"""Where jq-ctl and jq-worker find their jobs: --url, --server-addr and the environment."""

from __future__ import annotations

import os

import click
import pytest
from click.testing import CliRunner

from jobq.cli.address import Address, WrongAddress, use_token_file
from jobq.cli.ctl import main
from jobq.cli.options import Command, Root
from jobq.cli.options import Ctl as Control
from jobq.cli.probes import ProbeOptions
from tests.cli.kit import Ctl


def chosen(*args: str) -> str:
    """The store URL that jq-ctl uses for these arguments."""
    found: list[str] = []
    root = Root("jq-ctl")

    @root.command("look", cls=Command)
    @click.pass_context
    def look(ctx: click.Context) -> None:
        found.append(Control(ctx).backend.url)

    result = CliRunner().invoke(root, [*args, "look"])
    assert result.exit_code == 0, result.output
    return found[0]


def test_an_address_is_a_grpc_url_and_its_port_may_be_left_out() -> None:
    assert chosen("--server-addr", "queue.internal") == "grpc://queue.internal:50051"
    assert chosen("--server-addr", "a:1,b:2") == "grpc://a:1,b:2"
    assert chosen("--server-addr", "[::1]") == "grpc://[::1]:50051"


def test_any_tls_file_turns_on_tls() -> None:
    url = chosen("--server-addr", "a:1", "--tls-ca", "/etc/a b.pem")
    assert url == "grpcs://a:1?ca=%2Fetc%2Fa+b.pem"
    assert chosen("--url", "grpc://a:1", "--tls-ca", "ca.pem") == "grpcs://a:1?ca=ca.pem"
    assert chosen("--url", "grpcs://a:1?x=1", "--tls-ca", "ca.pem") == "grpcs://a:1?x=1&ca=ca.pem"


def test_the_command_line_comes_before_the_environment_and_a_server_before_a_url(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert chosen() == "sqlite:///jobq.db"
    monkeypatch.setenv("JQ_URL", "sqlite:///env.db")
    assert chosen() == "sqlite:///env.db"
    monkeypatch.setenv("JQ_SERVER_ADDR", "env:1")
    assert chosen() == "grpc://env:1"
    assert chosen("--url", "sqlite:///given.db") == "sqlite:///given.db"
    monkeypatch.delenv("JQ_URL")
    assert chosen("--server-addr", "given:2") == "grpc://given:2"


def test_tls_files_in_the_environment_are_for_servers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JQ_TLS_CA", "ca.pem")
    assert chosen("--url", "sqlite:///given.db") == "sqlite:///given.db"
    assert chosen("--server-addr", "a:1") == "grpcs://a:1?ca=ca.pem"
    assert chosen("--server-addr", "a:1", "--tls-ca", "mine.pem") == "grpcs://a:1?ca=mine.pem"


def test_the_rightmost_place_wins() -> None:
    """`manage.py jobq` writes the --url of the settings first."""
    assert chosen("--url", "sqlite:///a.db", "--server-addr", "b:1") == "grpc://b:1"
    assert chosen("--server-addr", "b:1", "--url", "sqlite:///a.db") == "sqlite:///a.db"


@pytest.mark.parametrize(
    "args",
    [
        ["--server-addr", "host:port"],
        ["--server-addr", "host:0"],
        ["--server-addr", "host:70000"],
        ["--server-addr", "::1"],
        ["--server-addr", "a:1,,b:2"],
        ["--server-addr", "http://host:1"],
        ["--server-addr", "a:1", "--tls-cert", "c.pem"],
        ["--url", "sqlite:///a.db", "--tls-ca", "ca.pem"],
    ],
    ids=" ".join,
)
def test_a_wrong_address_is_wrong_usage_in_one_line(args: list[str]) -> None:
    result = CliRunner().invoke(main, [*args, "status"])
    assert result.exit_code == 2, result.output
    assert len(result.stderr.splitlines()) == 1


def test_jq_worker_refuses_two_places() -> None:
    with pytest.raises(WrongAddress, match="give one of them"):
        Address(url="sqlite:///a.db", server_addr="b:1").given()


def test_a_token_file_on_the_command_line_overrides_a_token_in_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("JQ_TOKEN", "secret")
    monkeypatch.setenv("JQ_TOKEN_FILE", "other")
    use_token_file("mine")
    assert os.environ["JQ_TOKEN_FILE"] == "mine"
    assert "JQ_TOKEN" not in os.environ


def test_statuses_are_names_for_our_states(ctl: Ctl) -> None:
    ctl("job", "submit", "add", "--id", "now")
    ctl("job", "submit", "add", "--id", "later", "--delay", "1h")
    ctl("job", "submit", "add", "--id", "never")
    ctl("job", "cancel", "never")

    def ids(status: str) -> set[str]:
        return {job["id"] for job in ctl.json("job", "list", "--status", status)}

    assert ids("pending") == {"now", "later"}
    assert ids("running") == ids("done") == ids("failed") == set()
    ctl("job", "list", "--status", "done", "--state", "failed", code=2)


def test_only_a_worker_of_a_jq_server_has_default_ports_and_a_taken_one_is_no_error() -> None:
    assert ProbeOptions.of(None, None, "::", server=False)[:2] == (None, None)
    of_server = ProbeOptions.of(None, None, "::", server=True)
    assert of_server[:2] == (9091, 8081)
    assert of_server.optional == {9091, 8081}
    chosen = ProbeOptions.of(9200, 0, "::", server=True)
    assert chosen[:2] == (9200, None)
    assert chosen.optional == frozenset()
