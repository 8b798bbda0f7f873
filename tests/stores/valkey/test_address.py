"""URLs: their parts, and the errors for invalid ones."""

from __future__ import annotations

import pytest

from jobq.errors import ConfigError
from jobq.stores import open_store
from jobq.stores.valkey.address import parse


def test_a_plain_url_names_one_server() -> None:
    address = parse("valkey://example.com:7000/2?wait=1&timeout=3")
    assert (address.kind, address.nodes, address.db, address.wait, address.timeout) == (
        "single",
        (("example.com", 7000),),
        2,
        1,
        3,
    )


def test_parts_that_are_left_out_have_defaults() -> None:
    assert parse("valkey://").nodes == (("localhost", 6379),)
    assert parse("redis://host").nodes == (("host", 6379),)
    assert parse("valkey+sentinel://a,b:1/jobs").nodes == (("a", 26379), ("b", 1))
    assert parse("valkey://[::1]:7000").nodes == (("::1", 7000),)


def test_sentinel_and_cluster_urls_name_several_nodes() -> None:
    assert parse("valkey+cluster://a:1,b:2").nodes == (("a", 1), ("b", 2))
    sentinel = parse("valkey+sentinel://a:1,b:2/jobs/3")
    assert (sentinel.kind, sentinel.name, sentinel.db) == ("sentinel", "jobs", 3)


def test_the_password_is_not_shown() -> None:
    address = parse("rediss://me:s%40cret@host:1/0")
    assert (address.user, address.password, address.tls) == ("me", "s@cret", True)
    assert "cret" not in address.shown
    assert "cret" not in open_store("valkey://:s3cret@host").url
    assert parse("valkeys://host:1?ca=/etc/me@home").shown == "valkeys://host:1?ca=/etc/me@home"


@pytest.mark.parametrize("sign", "/?#")
def test_a_password_that_makes_the_url_invalid_is_not_shown(sign: str) -> None:
    with pytest.raises(ConfigError, match="%2F") as refused:
        parse(f"valkey://me:s3{sign}cret@host:6379/0?wait=1")
    assert "cret" not in str(refused.value)
    assert "s3" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("valkey://host/x", "'x'"),
        ("valkey://host:port", "'port'"),
        ("valkey://host:99999", "'99999' for its port: use a number from 1 to 65535"),
        ("valkey://host:²", "'²'"),
        ("valkey://[::1", "IPv6"),
        ("valkey://host?wait=yes", "'yes'"),
        ("valkey://host?wait=1&wait_timeout=6", "shorter than timeout"),
        ("valkey://host?wait=1&timeout=1", "shorter than timeout"),
        ("valkey://host?timeout=0", "'0'"),
        ("valkey://host?colour=red", "'colour'"),
        ("valkey://host?tls=yes", "'yes' for tls: use 1 or 0"),
        ("valkeys://host?tls=0", "tls=0"),
        ("valkey://host?ca=/etc/ca.pem", "ca without TLS"),
        ("valkey://host?wait=0&wait=1", "'wait' twice"),
        ("valkey://host?wait=1&wait_timeout=0.0001", "0.001"),
        ("valkey://host,other", "one server"),
        ("valkey://host/0/1", "'1'"),
        ("valkey+sentinel://host/jobs/0/1", "'1'"),
        ("valkey+sentinel://host", "primary"),
        ("valkey+cluster://host/3", "database 3"),
    ],
)
def test_the_error_for_an_invalid_url_names_the_invalid_part(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        open_store(url)


def test_a_user_without_a_password_is_sent_to_the_server() -> None:
    assert (parse("valkey://me@host").user, parse("valkey://me@host").password) == ("me", "")
    assert (parse("valkey://host").user, parse("valkey://host").password) == (None, None)
    assert parse("valkey://:secret@host").password == "secret"


def test_wait_timeout_is_checked_only_if_the_url_waits_for_replicas() -> None:
    assert parse("valkey://host?wait_timeout=6").wait == 0
