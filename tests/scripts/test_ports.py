"""scripts/ports.py reserves ports for the servers of tests."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

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
