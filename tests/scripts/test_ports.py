"""scripts/ports.py reserves ports for the servers of tests."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

import pytest

from scripts import ports

ROOT = Path(__file__).parents[2]


def test_a_port_is_given_once() -> None:
    given = [ports.free_port() for _ in range(50)]
    assert len(set(given)) == 50


def test_another_process_does_not_get_a_port_that_is_taken() -> None:
    mine = ports.free_port()
    code = f"from scripts import ports; print(ports._take({mine}))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"


def test_a_port_that_is_in_use_is_skipped() -> None:
    port = ports.free_port()
    with socket.socket() as server:
        server.bind(("127.0.0.1", port))
        server.listen()
        assert ports._listening(port)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no lock files on Windows")
def test_a_user_opens_no_lock_file_of_another_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: dict[int, int] = {}
    monkeypatch.setattr(ports, "_held", held)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    for user in (1001, 1002):
        monkeypatch.setattr(os, "getuid", partial(int, user))
        ports.free_port()
    for lock in held.values():
        os.close(lock)
    assert len(list(tmp_path.iterdir())) == 2
