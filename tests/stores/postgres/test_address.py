"""postgresql:// URLs: what they may say, and what a mistake in them is told."""

from __future__ import annotations

import pytest

from jobq.errors import ConfigError
from jobq.stores import open_store
from jobq.stores.postgres.address import parse
from jobq.stores.postgres.store import PostgresStore


@pytest.mark.parametrize("scheme", ["postgresql", "postgres"])
def test_both_schemes_open_the_store(scheme: str) -> None:
    assert isinstance(open_store(f"{scheme}://localhost/app"), PostgresStore)


def test_the_options_of_jobq_are_read_and_those_of_libpq_are_passed_on() -> None:
    found = parse(
        "postgresql://ann:s%2Fe@db:5433/app"
        "?schema=jobs_1&migrate=no&listen=no&timeout=3.5&sslmode=verify-full&sslrootcert=/ca.pem"
    )
    assert (found.schema, found.migrate, found.listen, found.timeout) == (
        "jobs_1",
        False,
        False,
        3.5,
    )
    assert found.options["user"] == "ann"
    assert found.options["password"] == "s/e"
    assert found.options["sslmode"] == "verify-full"
    assert "schema" not in found.options
    (attempt,) = found.attempts()
    assert b"sslrootcert=/ca.pem" in attempt


def test_each_of_several_hosts_gets_an_attempt_and_must_accept_writes() -> None:
    found = parse("postgresql://ann@one:1,two:2/app")
    one, two = found.attempts()
    assert b"host=one" in one
    assert b"port=1" in one
    assert b"host=two" in two
    assert b"port=2" in two
    assert b"target_session_attrs=read-write" in one


def test_hosts_may_share_a_port() -> None:
    one, two = parse("postgresql://one,two/app?port=7").attempts()
    assert b"port=7" in one
    assert b"port=7" in two


def test_messages_and_the_url_of_a_store_contain_no_password() -> None:
    url = "postgresql://ann:geheim@db/app?sslpassword=geheim"
    assert "geheim" not in open_store(url).url
    for broken in (f"{url}&schemaa=x", f"{url}&schema=A", "postgresql://ann:geheim/x@db/app"):
        with pytest.raises(ConfigError) as refused:
            parse(broken)
        assert "geheim" not in str(refused.value)
        assert "geheim" not in repr(refused.value.__cause__)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("shema=x", r"unknown option 'shema': did you mean 'schema'\?"),
        ("sslmod=require", r"did you mean 'sslmode'\?"),
        ("colour=red", r"jobq has schema, migrate, listen, timeout"),
        ("schema=a&schema=b", r"has the option 'schema' twice"),
        ("sslmode=require&sslmode=disable", r"has the option 'sslmode' twice"),
        ("host=a,b,c&port=1,2", r"has 2 values for port and 3 for host: write one for each server"),
        ("schema=Jobs", r"'Jobs' for its schema: use 1 to 63 lower-case letters"),
        ("schema=pg_x", r"'pg_x' for its schema"),
        ("migrate=maybe", r"'maybe' for migrate: use yes or no"),
        ("listen=1", r"'1' for listen: use yes or no"),
        ("timeout=0", r"'0' for timeout: use seconds, from 1 to an hour"),
        ("timeout=soon", r"'soon' for timeout"),
        ("client_encoding=latin1", r"jobq always uses UTF8"),
        ("connect_timeout=3", r"write timeout=seconds"),
    ],
)
def test_a_wrong_option_is_refused_with_the_right_one(options: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        open_store(f"postgresql://localhost/app?{options}")


def test_a_slash_in_a_password_must_be_escaped() -> None:
    with pytest.raises(ConfigError, match=r"write %2F, %3F or %23 instead"):
        parse("postgresql://ann:a/b@db/app")
