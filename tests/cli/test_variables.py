"""Files of the command lines: variables override them in every program, and a file that is nested
too deeply is an error of one line."""

from __future__ import annotations

import json
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any, get_args, get_origin

import click
import msgspec
import pytest
import yaml
from click.testing import CliRunner

from jobq.cli import ctl, server, worker
from jobq.cli.address import Address, overridden
from jobq.cli.worker import _SHARED_KEYS
from jobq.errors import ConfigError, Unauthenticated
from jobq.operations.capacity.constants import parse_measured
from jobq.pipeline.slo import load_targets
from jobq.server import config
from jobq.server.tokens import KeySet, TokenRules, Tokens, parse_jwks, secret_key
from jobq.stores.base.urls import claimed_tenant

# ── jq-server ─────────────────────────────────────────────────────────────────────────────────────


def _kind(key: str) -> Any:
    found: Any = config.Config
    for part in key.split("."):
        found = {field.name: field.type for field in msgspec.structs.fields(found)}[part]
    return found


def _samples(key: str) -> tuple[Any, Any]:
    """Two values that a key can have."""
    kind = _kind(key)
    kinds = get_args(kind) or (kind,)
    if get_origin(kind) is list:
        return ["a"], ["b", "c"]
    if bool in kinds:
        return False, True
    if int in kinds and str not in kinds:
        return 1, 2
    if float in kinds and str not in kinds:
        return 1.5, 2.5
    return "one", "two"


def _nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    found: dict[str, Any] = value
    return found


def _text(value: Any) -> str:
    return ",".join(value) if isinstance(value, list) else str(value).lower()


@pytest.mark.parametrize("key", config.keys())
def test_a_variable_overrides_every_key_of_the_file_of_jq_server(tmp_path: Path, key: str) -> None:
    path = tmp_path / "server.yaml"
    one, two = _samples(key)
    path.write_text("" if key in config.SECRETS else yaml.safe_dump(_nested(key, one)))
    names = {config.variable(key), config._ALIASES.get(key, config.variable(key))}
    for name in names:
        loaded = config.load(path, {name: _text(two)})
        assert config._value(msgspec.to_builtins(loaded.config), key) == two, name
        assert key in loaded.given
    flags = config.load(path, {config.variable(key): _text(one)}, {key: two}).config
    assert config._value(msgspec.to_builtins(flags), key) == two


# ── jq-worker ─────────────────────────────────────────────────────────────────────────────────────

SHARED = {
    "logging.level": ("debug", "error", "error"),
    "logging.format": ("text", "json", "json"),
    "scheduler.worker_heartbeat_timeout_s": (40, "50", 50.0),
    "shutdown_grace_period": (90, "100s", 100.0),
}
"""The keys of jq-server's file that concern a worker: in the file, in a variable, as an option."""


def test_every_key_that_concerns_a_worker_is_tried_here() -> None:
    assert SHARED.keys() == _SHARED_KEYS.keys()


@pytest.mark.parametrize("key", SHARED)
def test_a_variable_overrides_the_file_of_a_server_in_jq_worker(
    tmp_path: Path, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, option = tmp_path / "server.yaml", _SHARED_KEYS[key]
    in_file, given, expected = SHARED[key]
    path.write_text(yaml.safe_dump(_nested(key, in_file)) + "grpc: {port: 1}\n")
    for name in (config.variable(key), f"JQ_{option.upper()}"):
        with monkeypatch.context() as patch:
            patch.setenv(name, given)
            params = worker.main.make_context("w", ["--config", str(path), "a:b"]).params
        assert params[option] == expected, name


PLAIN = {
    option.name: option
    for option in worker.main.params
    if isinstance(option, click.Option) and option.name and option.name not in worker._ACTIONS
}
VALUES: dict[str, tuple[Any, str, Any]] = {
    "app": (["a:b"], "c:d", ("c:d",)),
    "allow_command": (["a"], "b", ("b",)),
    "log_level": ("debug", "error", "error"),
    "log_format": ("text", "json", "json"),
    "processes": (2, "3", 3),
    "max_memory": ("1G", "2G", 2 << 30),
    "pool_max_memory": ("1G", "2G", "2G"),
    "url": ("memory://one", "memory://two", "memory://two"),
    "server_addr": ("one:1", "two:2", "two:2"),
    "token_file": ("one", "two", "two"),
}
"""For options whose values are not all of a type: in the file, in a variable, and the result."""


def _worker_values(option: click.Option) -> tuple[Any, str, Any]:
    assert option.name is not None
    if option.name in VALUES:
        return VALUES[option.name]
    if option.is_flag:
        return False, "true", True
    if option.multiple:
        return ["one"], "two", ("two",)
    found = option.type.convert("7", option, None)
    if isinstance(found, (int, float)):
        return 6, "7", found
    return "one", "two", "two"


@pytest.mark.parametrize("name", PLAIN)
def test_a_variable_overrides_every_option_in_the_file_of_jq_worker(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_file, given, expected = _worker_values(PLAIN[name])
    path = tmp_path / "worker.yaml"
    path.write_text(yaml.safe_dump({name: in_file}))
    arguments = ("--config", str(path), "a:b")
    before = worker.main.make_context("w", list(arguments)).params[name]
    monkeypatch.setenv(f"JQ_{name.upper()}", given)
    assert worker.main.make_context("w", list(arguments)).params[name] == expected != before


@pytest.mark.parametrize("file", ["url", "server_addr"])
@pytest.mark.parametrize("variables", [("url",), ("server_addr",), ("server_addr", "url")])
def test_a_place_in_the_environment_replaces_both_ways_to_name_it_in_a_file(
    file: str, variables: tuple[str, ...]
) -> None:
    given = {"url": "grpc://one:1", "server_addr": "one:1"}
    environment = {f"JQ_{name.upper()}": VALUES[name][1] for name in variables}
    found = overridden({file: given[file], "lease": 5}, environment)
    assert found == {"lease": 5, variables[0]: VALUES[variables[0]][1]}


def test_a_token_in_the_environment_replaces_the_file_of_a_token() -> None:
    assert overridden({"token_file": "x"}, {"JQ_TOKEN": "t"}) == {}


def test_the_processes_of_a_worker_find_the_same_server_as_their_supervisor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It hands them JQ_URL, and they see the same file and the same variables."""
    for name in ("JQ_URL", "JQ_SERVER_ADDR", "JQ_TLS_CA", "JQ_TLS_CERT", "JQ_TLS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("JQ_TLS_CA", "ca.crt")
    for options in ({"url": "grpc://one:1"}, {"server_addr": "one:1"}):
        first = Address(**overridden(options, {})).given()
        assert first == "grpcs://one:1?ca=ca.crt"
        again = overridden(options, {"JQ_URL": first})
        assert Address(**again).given() == first


# ── files that are nested too deeply ──────────────────────────────────────────────────────────────

DEPTHS = (1_000, 50_000)


def _deep(depth: int) -> dict[str, str]:
    return {
        "list": "[" * depth + "]" * depth,
        "map": '{"a": ' * depth + "1" + "}" * depth,
        "open": "[" * depth,
    }


PROGRAMS: dict[str, tuple[click.Command, list[str]]] = {
    "jq-server": (server.main, ["--config", "FILE", "--dry-run"]),
    "jq-worker": (worker.main, ["--config", "FILE", "a:b"]),
    "jq-ctl payload": (ctl.main, ["--url", "memory://d", "job", "submit", "x", "-q", "q"]),
}
PROGRAMS["jq-ctl lines"] = PROGRAMS["jq-ctl payload"]
_MORE = {"jq-ctl payload": ["--payload", "@FILE"], "jq-ctl lines": ["--lines", "FILE"]}


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("depth", DEPTHS)
def test_a_file_that_is_nested_too_deeply_is_an_error_of_one_line(
    tmp_path: Path, program: str, depth: int
) -> None:
    command, arguments = PROGRAMS[program]
    for name, text in _deep(depth).items():
        path = tmp_path / name
        path.write_text(text if program.startswith("jq-ctl") else f"grpc: {text}")
        given = [each.replace("FILE", str(path)) for each in (*arguments, *_MORE.get(program, ()))]
        result = CliRunner().invoke(command, given)
        assert isinstance(result.exception, SystemExit | None), (name, result.exception)
        assert "Traceback" not in result.output
        said = [line for line in result.output.splitlines() if line.startswith("Error")]
        assert len(said) == (result.exit_code != 0), result.output[:2000]
        assert result.exit_code == 0 or len(said[0]) < 500


@pytest.mark.parametrize("depth", DEPTHS)
def test_every_other_file_that_is_nested_too_deeply_is_a_plain_error_too(
    tmp_path: Path, depth: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for text in _deep(depth).values():
        path = tmp_path / "file"
        path.write_text(f"targets: {text}")
        for read in (
            lambda: load_targets(str(path)),  # noqa: B023
            lambda: parse_measured(f"a = {text}", "costs.toml"),  # noqa: B023
            lambda: parse_jwks(text.encode(), frozenset(), secrets=True),  # noqa: B023
        ):
            with pytest.raises(ConfigError) as refused:
                read()
            assert "\n" not in str(refused.value).strip()
        part = base64_of(text)
        monkeypatch.setenv("JQ_TOKEN", f"{part}.{part}.x")
        assert claimed_tenant() is None
        with pytest.raises(Unauthenticated):
            Tokens(KeySet([secret_key(b"x" * 32, frozenset())]), TokenRules()).principal(
                f"{part[:8_000]}.{part[:4_000]}.x"
            )


def base64_of(text: str) -> str:
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


def test_a_whole_token_header_that_is_nested_too_deeply_is_refused() -> None:
    header = base64_of(json.dumps({"alg": "HS256"})[:-1] + ',"x":' + "[" * 5_000)
    with pytest.raises(Unauthenticated, match="not a JSON Web Token"):
        Tokens(KeySet([secret_key(b"x" * 32, frozenset())]), TokenRules()).principal(
            f"{header}.e30.x"
        )
