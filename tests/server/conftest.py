"""Servers for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.serving import RunningServer, ServerProcess, process, running


@pytest.fixture
def running_server() -> Iterator[RunningServer]:
    """A server on a store in memory, without tokens, in a thread."""
    with running() as server:
        yield server


@pytest.fixture
def server_process(tmp_path: Path) -> Iterator[ServerProcess]:
    """A server on a SQLite file, without tokens, as a process."""
    with process(f"sqlite:///{tmp_path}/jobs.db") as server:
        yield server
