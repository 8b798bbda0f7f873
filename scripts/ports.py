"""Ports for the servers that tests and benchmarks start.

A port that the kernel picks can be picked again by another process before the server starts. These ports lie below the
range from which the kernel picks. A lock file reserves each of them until the process that took it ends.
"""

from __future__ import annotations

import os
import random
import socket
import tempfile
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: the check that nobody listens is all there is
    fcntl = None  # type: ignore[assignment]

FIRST, LAST = 15_000, 22_000
BUS = 10_000
"""A node of a Cluster listens on its port plus this as well; up to LAST + BUS the kernel picks none by itself."""

_held: dict[int, int] = {}  # port → lock file; closed, and so unlocked, when the process ends


def free_port() -> int:
    """A port that nobody has and nobody else of this project gets while this process lives. So is its bus port."""
    for port in random.sample(range(FIRST, LAST), LAST - FIRST):
        if port not in _held and _take(port):
            return port
    raise RuntimeError(f"no free port between {FIRST} and {LAST}")


def _take(port: int) -> bool:
    lock = -1
    if fcntl is not None:
        folder = Path(tempfile.gettempdir()) / "jobq-ports"
        folder.mkdir(exist_ok=True)
        lock = os.open(folder / str(port), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            return False
    if _listening(port) or _listening(port + BUS):
        if lock >= 0:
            os.close(lock)
        return False
    _held[port] = lock
    return True


def _listening(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return True
    return False
