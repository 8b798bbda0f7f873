"""A Valkey for these tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stores.valkey import servers


@pytest.fixture
def valkey(tmp_path: Path) -> Iterator[servers.Server]:
    """A Valkey without data."""
    try:
        binary = servers.valkey_binary()
    except servers.Missing as missing:
        pytest.skip(str(missing))
    with servers.running(binary, tmp_path) as server:
        yield server
