"""No password survives being shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobq.core.values.printable import redacted, redacted_url

SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:///jobs.db", "sqlite:///jobs.db"),
        ("valkey://host:6379/0?wait=1", "valkey://host:6379/0?wait=1"),
        ("valkey://:hunter2@host", "valkey://:***@host"),
        ("valkey://:12?34@host", "valkey://:***@host"),
        ("valkey://me:12?34@host:6379/0", "valkey://me:***@host:6379/0"),
        (
            "valkey+cluster://me:hunter2@a:1,b:2?timeout=3",
            "valkey+cluster://me:***@a:1,b:2?timeout=3",
        ),
        (
            "kafka://host:9092/topic?sasl.password=hunter2&acks=all",
            "kafka://host:9092/topic?sasl.password=***&acks=all",
        ),
        ("kafka://host/t?a=1&SSL.KEY.PEM=hunter2", "kafka://host/t?a=1&SSL.KEY.PEM=***"),
        ("valkeys://host:1?ca=/etc/me@home", "valkeys://host:1?ca=/etc/me@home"),
        ("no url at all", "no url at all"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert redacted_url(url) == redacted(url) == shown


@given(
    st.text(st.sampled_from("/?#@:%=&[]é"), max_size=6),
    st.text(st.sampled_from("/?#@:%=&[]é"), max_size=6),
)
def test_a_password_with_any_signs_is_not_shown(before: str, after: str) -> None:
    assert SECRET not in redacted_url(f"valkey://me:{before}{SECRET}{after}@host:6379/0")


def test_urls_are_found_in_a_text() -> None:
    text = "cannot reach 'valkey://:hunter2@a' nor kafka://b/t?sasl.password=hunter2, trying again"
    assert SECRET not in redacted(text)
    assert redacted(text).startswith(
        "cannot reach 'valkey://:***@a' nor kafka://b/t?sasl.password=***"
    )
