"""URLs of jq-servers, and where the token comes from."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobq.errors import ConfigError
from jobq.stores import open_store
from jobq.stores.base.urls import token
from jobq.stores.remote.address import parse


@pytest.mark.parametrize(
    ("url", "targets"),
    [
        ("grpc://", ("dns:///localhost:50051",)),
        ("grpc://jobs", ("dns:///jobs:50051",)),
        ("grpc://jobs:7000", ("dns:///jobs:7000",)),
        ("grpc://a:1,b", ("dns:///a:1", "dns:///b:50051")),
        ("grpc://[::1]:7000,[fe80::1]", ("dns:///[::1]:7000", "dns:///[fe80::1]:50051")),
    ],
)
def test_a_url_names_one_server_or_several(url: str, targets: tuple[str, ...]) -> None:
    assert parse(url).targets == targets


def test_a_url_with_tls_names_its_files() -> None:
    address = parse("grpcs://jobs?ca=/c/ca.pem&cert=/c/me.pem&key=/c/me.key&timeout=3")
    assert (address.tls, address.timeout) == (True, 3.0)
    assert (address.ca, address.cert, address.key) == ("/c/ca.pem", "/c/me.pem", "/c/me.key")


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("grpc://me:hunter2@jobs", "expects a token: set JQ_TOKEN"),
        ("grpc://jobs?token=hunter2", "has a token in it"),
        ("grpc://jobs?timeuot=3", "did you mean 'timeout'"),
        ("grpc://jobs?ca=x", "needs grpcs://"),
        ("grpcs://jobs?cert=x", "both cert= and key="),
        ("grpc://jobs:70000", "from 1 to 65535"),
        ("grpc://jobs/queue", "only hosts and ports"),
        ("grpc://jobs?timeout=never", "a number of seconds"),
        ("grpc://jobs?timeout=3&timeout=4", "'timeout' twice"),
    ],
)
def test_a_wrong_url_is_refused_with_what_to_write_instead(url: str, words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        open_store(url)
    assert words in str(refused.value)
    assert "hunter2" not in str(refused.value)


def test_the_token_is_read_from_the_environment_or_again_from_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JQ_TOKEN", raising=False)
    monkeypatch.delenv("JQ_TOKEN_FILE", raising=False)
    assert token() is None
    file = tmp_path / "token"
    file.write_text("first\n")
    monkeypatch.setenv("JQ_TOKEN_FILE", str(file))
    assert token() == "first"
    file.write_text("second\n")
    assert token() == "second"
    monkeypatch.setenv("JQ_TOKEN", "third")
    assert token() == "third"


@pytest.mark.parametrize("text", ["", "two words", "line\nline", "ü"])
def test_a_token_file_without_a_token_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.delenv("JQ_TOKEN", raising=False)
    monkeypatch.setenv("JQ_TOKEN_FILE", str(tmp_path / "token"))
    with pytest.raises(ConfigError, match="JQ_TOKEN_FILE"):
        token()
    (tmp_path / "token").write_text(text)
    with pytest.raises(ConfigError, match="JQ_TOKEN_FILE"):
        token()
