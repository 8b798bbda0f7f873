"""The lock of a lake's only writer: a file that names the writer and that it renews.

A claim ends when its owner releases it, when the owner's process is gone (noticed at once on the
same machine), or when it was not renewed for a minute. An owner that was considered dead notices
before its next batch, and stops. Its unfinished files are in its own folder under `_staging`, so
they cannot mix with those of its successor.
"""

from __future__ import annotations

import os
import platform
import threading
import time
import uuid
from contextlib import suppress
from types import TracebackType

import msgspec

from jobq.errors import ConfigError
from jobq.pipeline.fs import Files

RENEW_S = 10.0  # seconds between renewals
EXPIRES_S = 60.0  # seconds without renewal until a claim expires: five missed renewals


class LakeInUse(ConfigError):
    """Another command is writing to the lake."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the lock file."""

    owner: str
    command: str
    host: str
    pid: int
    at_ms: int

    def is_dead(self, now_ms: int) -> bool:
        """Whether the owner has died or stopped renewing its claim."""
        if self.host == _host() and not _runs(self.pid):
            return True
        return now_ms - self.at_ms > EXPIRES_S * 1000


def _host() -> str:
    """This machine and its process namespace (container), in which process ids are valid."""
    with suppress(OSError):
        return f"{platform.node()} {os.readlink('/proc/self/ns/pid')}"
    return platform.node()


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # the process belongs to another user
    return True


class Lock:
    """`with Lock(files, path, "run"): …`. Raises LakeInUse if another writer has the lake."""

    def __init__(self, files: Files, path: str, command: str) -> None:
        self.files, self.path, self.command = files, path, command
        self.owner = uuid.uuid4().hex
        self._ended = threading.Event()
        # A file that is being written may look empty, so the thread that renews the claim and the
        # one that checks it take turns.
        self._turn = threading.RLock()
        self._renewing: threading.Thread | None = None

    def acquire(self) -> None:
        """Claim the lake."""
        found = self._read()
        if found is not None and not found.is_dead(_now_ms()):
            raise LakeInUse(_in_use(found))
        self._write()
        self.check()  # if two writers came at once, the one whose claim was overwritten gives up
        self._renewing = threading.Thread(target=self._renew, name="jobq-lake-lock", daemon=True)
        self._renewing.start()

    def check(self) -> None:
        """Raise LakeInUse if this writer has lost the lake."""
        with self._turn:
            found = self._read()
        if found is None or found.owner != self.owner:
            raise LakeInUse(
                _in_use(found)
                if found
                else "the lock of the lake was removed: run the command again"
            )

    def release(self) -> None:
        """Release the lake, if this writer still has it."""
        self._ended.set()
        if self._renewing is not None:
            self._renewing.join()
        found = self._read()
        if found is not None and found.owner == self.owner:
            self.files.delete(self.path)

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_S):
            # A file system that fails now may work at the next renewal.
            with suppress(Exception), self._turn:
                self.check()
                self._write()

    def _read(self) -> Claim | None:
        text = self.files.read(self.path)
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(text, type=Claim) if text else None
        return None

    def _write(self) -> None:
        claim = Claim(
            owner=self.owner, command=self.command, host=_host(), pid=os.getpid(), at_ms=_now_ms()
        )
        self.files.write(self.path, msgspec.json.encode(claim).decode())

    def __enter__(self) -> Lock:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def _in_use(claim: Claim) -> str:
    seen, who = (
        max(0, _now_ms() - claim.at_ms) / 1000,
        f"process {claim.pid} on {claim.host.split()[0]}",
    )
    return (
        f"`jq-pipeline {claim.command}` ({who}) is writing to this lake: stop it first. "
        f"It was last seen {seen:.0f} s ago; if it has died, its lock expires {EXPIRES_S:.0f} s "
        "after it was last seen"
    )


def _now_ms() -> int:
    return int(time.time() * 1000)
