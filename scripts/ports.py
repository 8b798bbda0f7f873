"""Ports for the servers that tests and benchmarks start.

If the kernel chose the port, another process could get the same port before the server starts. So
these ports are below the range from which the kernel chooses. A lock file reserves each port until
the process that took it ends.
"""

from __future__ import annotations

import os
import random
import socket
import tempfile
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows: only checks that nobody listens on the port
    fcntl = None  # type: ignore[assignment]

FIRST, LAST = 15_000, 22_000
BUS = 10_000
"""A cluster node also listens on its port plus this. LAST + BUS is below the kernel's range."""

_held: dict[int, int] = {}  # port → lock file, which is unlocked when the process ends


def free_port() -> int:
    """Reserve a port, and its bus port, for the lifetime of this process."""
    for port in random.sample(range(FIRST, LAST), LAST - FIRST):
        if port not in _held and _take(port):
            return port
    raise RuntimeError(f"no free port from {FIRST} to {LAST}")


def _take(port: int) -> bool:
    lock = -1
    if fcntl is not None:
        # A folder per user: one user cannot open the lock files of another.
        folder = Path(tempfile.gettempdir()) / f"jobq-ports-{os.getuid()}"
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
