"""The `files://` target: rotated files of JSON lines in a folder.

The relay appends to a hidden file and renames it to `events-TIME-WHO-N.jsonl` when it is large or
old enough (`?max_mb=64&max_seconds=10`). So readers only see complete files that never change.

Every page is on disk (fsync) before it is acknowledged. If a relay dies, the next relay that opens
the folder finishes its file: it cuts off an incomplete last line and publishes the rest. The events
of that line were not acknowledged, so they are sent again.

A mark (`core.records.marks`) must not be visible before the events that it speaks of. Another
relay may have written some of them to a file that is still hidden. So a mark waits until all files
that were hidden when it came are published.
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

from jobq.core.records import wire
from jobq.core.records.events import EventRecord
from jobq.core.records.marks import Mark
from jobq.core.records.marks import encode as encode_mark
from jobq.core.values.checks import did_you_mean
from jobq.core.values.printable import redacted_url
from jobq.errors import ConfigError
from jobq.relay.targets import Rejected, TargetUnavailable

_GROWING = ".growing-"  # prefix of the file that is being written
_DEFAULTS = {"max_mb": 64.0, "max_seconds": 10.0}


class FilesTarget:
    """Writes one file at a time. Several instances may share a folder."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.netloc or not parts.path:
            raise ConfigError(
                f"{redacted_url(url)!r} is not a folder: use files:///absolute/folder"
            )
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
        # Marks by log and shard: those that wait for `_before_marks`, and those that came later.
        self._marks: dict[tuple[str, int], Mark] = {}
        self._before_marks: set[Path] = set()
        self._later_marks: dict[tuple[str, int], Mark] = {}
        # A threading lock: after a task is cancelled, its work in a thread continues.
        self._lock = threading.Lock()

    async def open(self) -> None:
        """Create the folder and finish the files of dead relays.

        Raises ConfigError if the path is not a folder."""
        try:
            await asyncio.to_thread(self._open)
        except (FileExistsError, NotADirectoryError) as e:
            raise ConfigError(f"{self.name} is not a folder: {e}") from e
        except OSError as e:
            raise TargetUnavailable(f"{self.name} is unavailable: {e}") from e

    def _open(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for path in self.folder.glob(f"{_GROWING}*"):
            self._finish_abandoned(path)

    def _finish_abandoned(self, path: Path) -> None:
        try:
            file = path.open("r+b")
        except FileNotFoundError:
            return  # another relay has finished it
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return  # its relay is alive
            if not _is_at(file, path):
                return  # another relay has finished it
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
        """Append the events and fsync. A full or missing disk raises TargetUnavailable."""
        lines = b"".join(wire.encode(event) + b"\n" for event in events)
        try:
            await asyncio.to_thread(self._locked, self._append, lines)
        except OSError as e:
            raise TargetUnavailable(
                f"{self.name}: could not write {len(events)} events: {e}"
            ) from e
        return []

    async def mark(self, marks: Sequence[Mark]) -> None:
        """Write the marks as soon as no file of another relay is in their way."""
        await self._published(lambda: self._add_marks(marks))

    def _add_marks(self, marks: Sequence[Mark]) -> None:
        self._later_marks |= {(mark.log, mark.shard): mark for mark in marks}
        self._write_marks()

    def _write_marks(self) -> None:
        if not self._marks and self._later_marks:
            self._open()  # publishes what dead relays left
            self._before_marks = {*self.folder.glob(f"{_GROWING}*")} - {self._path}
            self._marks, self._later_marks = self._later_marks, {}
        self._before_marks = {path for path in self._before_marks if path.exists()}
        if self._marks and not self._before_marks:
            self._append(b"".join(encode_mark(mark) + b"\n" for mark in self._marks.values()))
            self._marks = {}

    def _locked(self, work: Callable[..., None], *args: bytes) -> None:
        with self._lock:
            work(*args)

    def _append(self, lines: bytes) -> None:
        if self._file is not None and not _is_at(self._file, self._path):
            self._close()  # the file was deleted: nobody would ever read what is written to it
        if self._file is None:
            self._start()
        assert self._file is not None
        before = self._file.tell()
        try:
            self._file.write(lines)
            self._file.flush()
            os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(before)  # half a page would leave a broken line
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
            # Before this relay locked the file, another relay started, took the file for abandoned
            # and removed it. Try again with a new file.
            file.close()
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
                self._close()
                raise
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    async def tick(self) -> None:
        """Write marks, and publish the file if it is old enough.

        Raises TargetUnavailable if that fails."""
        await self._published(self._tend)

    def _tend(self) -> None:
        self._write_marks()
        self._rotate_if_due()

    async def aclose(self) -> None:
        """Publish the current file."""
        await self._published(self._end)

    def _end(self) -> None:
        self._write_marks()
        self._finish()

    async def _published(self, work: Callable[[], None]) -> None:
        try:
            await asyncio.to_thread(self._locked, work)
        except OSError as e:
            raise TargetUnavailable(f"{self.name}: could not publish {self._path.name}: {e}") from e


def _options(query: str) -> dict[str, float]:
    """The options in a URL's query, with defaults."""
    options = dict(_DEFAULTS)
    for name, text in parse_qsl(query, keep_blank_values=True):
        if name not in _DEFAULTS:
            raise ConfigError(
                f"files:// has no option {name!r}{did_you_mean(name, _DEFAULTS)}; "
                f"its options are {', '.join(_DEFAULTS)}"
            )
        try:
            options[name] = float(text)
        except ValueError:
            options[name] = math.nan
        if not 0 <= options[name] < math.inf:
            raise ConfigError(f"{name}={text!r} must be a number, 0 or greater")
    return options


def _is_at(file: BinaryIO, path: Path) -> bool:
    """Whether the open file is still the file at this path."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _end_of_last_line(file: BinaryIO) -> int:
    """The file's size up to and including the last newline."""
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
    """Fsync the folder. Only then is a rename in it durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
