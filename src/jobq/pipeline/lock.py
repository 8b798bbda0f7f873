"""One writer per lake: a file that says who it is and is renewed while it lives.

A claim ends when its owner gives it up, when the owner's process is gone (seen at once from the same machine), or when it has
not been renewed for a minute. An owner that was taken for dead finds out before its next batch, and stops. What it may have
left in `_staging` is in a folder of its own, so that it cannot mix with what its successor writes.
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

RENEW_S = 10.0
EXPIRES_S = 60.0


class LakeInUse(ConfigError):
    """Another command is writing to the lake."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What the file says."""

    owner: str
    command: str
    host: str
    pid: int
    at_ms: int

    def is_dead(self, now_ms: int) -> bool:
        """Whether nobody can be at work under it any more."""
        if self.host == _host() and not _runs(self.pid):
            return True
        return now_ms - self.at_ms > EXPIRES_S * 1000


def _host() -> str:
    """This machine, and the container in it, because process ids mean something only there."""
    with suppress(OSError):
        return f"{platform.node()} {os.readlink('/proc/self/ns/pid')}"
    return platform.node()


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # it is somebody else's
    return True


class Lock:
    """`with Lock(files, path, "run"): …`. LakeInUse if another has it. `check` raises it once it was lost."""

    def __init__(self, files: Files, path: str, command: str) -> None:
        self.files, self.path, self.command = files, path, command
        self.owner = uuid.uuid4().hex
        self._ended = threading.Event()
        self._renewing: threading.Thread | None = None

    def acquire(self) -> None:
        """Claim the lake."""
        found = self._read()
        if found is not None and not found.is_dead(_now_ms()):
            raise LakeInUse(_in_use(found))
        self._write()
        self.check()  # of two that came at once, the one whose claim was written over gives way
        self._renewing = threading.Thread(target=self._renew, name="jobq-lake-lock", daemon=True)
        self._renewing.start()

    def check(self) -> None:
        """LakeInUse if somebody else has the lake by now."""
        found = self._read()
        if found is None or found.owner != self.owner:
            raise LakeInUse(
                _in_use(found) if found else "the claim on the lake was removed: run again"
            )

    def release(self) -> None:
        """Give it up, if it is still ours."""
        self._ended.set()
        if self._renewing is not None:
            self._renewing.join()
        found = self._read()
        if found is not None and found.owner == self.owner:
            self.files.delete(self.path)

    def _renew(self) -> None:
        while not self._ended.wait(RENEW_S):
            with suppress(
                Exception
            ):  # a file system that does not answer now may do so at the next beat
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
        f"`jq-pipeline {claim.command}` ({who}) is writing to this lake, last seen {seen:.0f} s ago: stop it first. "
        f"If it is dead, its claim ends {EXPIRES_S:.0f} s after it was last seen"
    )


def _now_ms() -> int:
    return int(time.time() * 1000)
