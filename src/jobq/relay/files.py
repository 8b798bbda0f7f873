"""Rotated JSON lines in a folder, for people without Kafka.

A file grows under a hidden name and gets its own (`events-TIME-WHO-N.jsonl`) when it is large or old enough: readers see only
whole files that change no more. Every page is on disk (fsync) before it is acknowledged. A file left behind by a relay that
died is finished by the next one that opens the folder: a torn last line is cut off (its events were not acknowledged, and
come again), the rest is published. `?max_mb=64&max_seconds=10` set the rotation.
"""

from __future__ import annotations

import asyncio
import fcntl
import math
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO
from urllib.parse import parse_qsl, unquote, urlsplit

from jobq.core import wire
from jobq.core.checks import did_you_mean
from jobq.core.event_records import EventRecord
from jobq.core.redact import redacted_url
from jobq.errors import ConfigError
from jobq.relay.targets import Rejected, TargetUnavailable

_GROWING = ".growing-"
_DEFAULTS = {"max_mb": 64.0, "max_seconds": 10.0}


class FilesTarget:
    """One growing file per instance; several instances may share a folder."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.netloc or not parts.path:
            raise ConfigError(f"{redacted_url(url)!r} is not a folder: files:///absolute/folder")
        options = _options(parts.query)
        self.folder = Path(unquote(parts.path))
        self.name = f"files://{self.folder}"
        self.max_bytes = int(options["max_mb"] * 1024 * 1024)
        self.max_seconds = options["max_seconds"]
        self._who = (
            re.sub(r"[^A-Za-z0-9]", "", socket.gethostname())
            + f"-{os.getpid()}-{os.urandom(2).hex()}"
        )
        self._file: BinaryIO | None = None
        self._path = Path()
        self._since = 0.0
        self._count = 0
        self._lock = (
            threading.Lock()
        )  # of threads, not of tasks: what a cancelled task began in a thread goes on there

    async def open(self) -> None:
        """Make the folder, and finish what a dead relay left. ConfigError if something else than a folder is there."""
        try:
            await asyncio.to_thread(self._open)
        except (FileExistsError, NotADirectoryError) as e:
            raise ConfigError(f"{self.name} is not a folder: {e}") from e
        except OSError as e:
            raise TargetUnavailable(f"{self.name} cannot be used: {e}") from e

    def _open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.glob(f"{_GROWING}*"):
            self._finish_abandoned(path)

    def _finish_abandoned(self, path: Path) -> None:
        try:
            file = path.open("r+b")
        except FileNotFoundError:
            return  # another instance was faster
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return  # its relay is alive
            if not _is_at(file, path):
                return  # another instance was faster
            whole = _end_of_last_line(file)
            file.truncate(whole)
            os.fsync(file.fileno())
            self._publish(path, whole)

    def _publish(self, path: Path, size: int) -> None:
        if size:
            path.rename(self.folder / f"events-{path.name.removeprefix(_GROWING)}.jsonl")
            _sync_folder(self.folder)
        else:
            path.unlink()

    async def send(self, events: Sequence[EventRecord]) -> list[Rejected]:
        """Append and fsync. A disk that is full or gone is an outage, not a reason to drop."""
        lines = b"".join(wire.encode(event) + b"\n" for event in events)
        try:
            await asyncio.to_thread(self._locked, self._append, lines)
        except OSError as e:
            raise TargetUnavailable(f"{self.name} did not take {len(events)} events: {e}") from e
        return []

    def _locked(self, work: Callable[..., None], *args: bytes) -> None:
        with self._lock:
            work(*args)

    def _append(self, lines: bytes) -> None:
        if self._file is not None and not _is_at(self._file, self._path):
            self._forget()  # somebody has removed it: what is written to it now, nobody would ever read
        if self._file is None:
            self._start()
        assert self._file is not None
        before = self._file.tell()
        try:
            self._file.write(lines)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(before)  # half a page would be read as torn lines
            self._file.seek(before)
            raise
        self._rotate_if_due()

    def _start(self) -> None:
        while True:
            self._count += 1
            stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
            path = self.folder / f"{_GROWING}{stamp}-{self._who}-{self._count:06d}"
            file = path.open("xb")
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
                if _is_at(file, path):
                    _sync_folder(self.folder)
                    break
            except BaseException:
                file.close()
                raise
            file.close()  # before it was locked, a relay that started took it for abandoned and removed it: another one
        self._file, self._path, self._since = file, path, time.monotonic()

    def _rotate_if_due(self) -> None:
        if self._file and (
            self._file.tell() >= self.max_bytes
            or time.monotonic() - self._since >= self.max_seconds
        ):
            self._finish()

    def _finish(self) -> None:
        if self._file is not None:
            try:
                self._publish(self._path, self._file.tell())
            except FileNotFoundError:
                self._forget()
                raise
            self._forget()

    def _forget(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    async def tick(self) -> None:
        """Rotate what is old enough. TargetUnavailable if that fails: the next tick tries again."""
        await self._published(self._rotate_if_due)

    async def aclose(self) -> None:
        """Publish what there is."""
        await self._published(self._finish)

    async def _published(self, work: Callable[[], None]) -> None:
        try:
            await asyncio.to_thread(self._locked, work)
        except OSError as e:
            raise TargetUnavailable(f"{self.name} did not publish {self._path.name}: {e}") from e


def _options(query: str) -> dict[str, float]:
    """The numbers of a URL's query, and the defaults of those it does not name."""
    options = dict(_DEFAULTS)
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in _DEFAULTS:
            raise ConfigError(
                f"files:// has no option {name!r}{did_you_mean(name, _DEFAULTS)}: there is {', '.join(_DEFAULTS)}"
            )
        try:
            options[name] = float(text)
        except ValueError:
            options[name] = math.nan
        if not 0 <= options[name] < math.inf:
            raise ConfigError(f"{name}={text!r} is not a number from 0 up")
    return options


def _is_at(file: BinaryIO, path: Path) -> bool:
    """Whether the path still leads to the open file."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _end_of_last_line(file: BinaryIO) -> int:
    """The size up to and with the last newline."""
    end = file.seek(0, os.SEEK_END)
    while end:
        start = max(0, end - 65_536)
        file.seek(start)
        found = file.read(end - start).rfind(b"\n")
        if found >= 0:
            return start + found + 1
        end = start
    return 0


def _sync_folder(folder: Path) -> None:
    """A rename is on disk when its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
