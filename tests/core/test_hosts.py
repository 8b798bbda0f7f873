"""Which hosts only this machine can reach."""

from __future__ import annotations

import pytest

from jobq.core.values.hosts import is_loopback


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.9.10", "::1"])
def test_only_this_machine_reaches_loopback(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    "host",
    ["", "0.0.0.0", "::", "10.0.0.1", "localhost.example.org", "127.0.0.1.example.org", "unix:a"],
)
def test_other_machines_may_reach_every_other_host(host: str) -> None:
    assert not is_loopback(host)
