"""Compiles the shims of this folder and preloads them: power cuts that lose unsynced writes, and
clocks that jump."""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

SHIMS = Path(__file__).with_name("shims")
BLOCK = 4096
"""Bytes that a disk writes as a whole: a power cut may leave any of them written or not."""
_HEADER = struct.Struct("=qq")
_RECORD = struct.Struct("=qqq")

Damage = Literal["all", "some", "end"]
"""What a power cut loses: everything that was not synced, any blocks of it, or the end of it."""


class Missing(Exception):
    """A shim cannot be used on this machine. The message says why."""


def build(name: str, folder: Path) -> Path:
    """Compile a shim and return the library."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or os.uname().sysname != "Linux":
        raise Missing("needs Linux and a C compiler: apt install gcc libc6-dev")
    library = folder / f"{name}.so"
    done = subprocess.run(
        [
            *(compiler, "-shared", "-fPIC", "-O2", "-o", str(library)),
            *(str(SHIMS / f"{name}.c"), "-ldl", "-lpthread"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if done.returncode != 0:
        raise Missing(f"{name}.c cannot be compiled: {done.stderr.strip()}")
    library.chmod(0o755)
    return library


@contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """Processes that are started within the context get these variables."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def together(*environments: dict[str, str]) -> dict[str, str]:
    """All variables, with all libraries in LD_PRELOAD."""
    merged: dict[str, str] = {}
    libraries: list[str] = []
    for variables in environments:
        merged |= variables
        libraries += variables.get("LD_PRELOAD", "").split()
    if libraries:
        merged["LD_PRELOAD"] = " ".join(libraries)
    return merged


class Loss(NamedTuple):
    """What a power cut did to one file. `synced_ms` is when it was synced last, monotonic."""

    path: Path
    synced_ms: int
    writes: int


class Power:
    """The unsynced writes of the processes that write files of `folder`."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        self._folder = folder.resolve()
        self._undo = scratch / "unsynced"
        self._undo.mkdir()
        self._undo.chmod(0o777)  # PostgreSQL runs as another user
        self.variables = {
            "LD_PRELOAD": str(build("power", scratch)),
            "POWER_DIR": str(self._folder),
            "POWER_LOG": str(self._undo),
        }

    def cut(self, damage: Damage, rng: random.Random) -> list[Loss]:
        """Take unsynced writes back. Every process that writes the files must be dead."""
        losses = []
        for path in sorted(self._folder.rglob("*")):
            if path.is_file() and not path.is_symlink():
                stat = path.stat()
                undo = self._undo / f"{stat.st_dev:x}-{stat.st_ino:x}"
                if undo.exists():
                    losses.append(_undo(path, undo.read_bytes(), damage, rng))
        for undo in self._undo.iterdir():
            undo.unlink()
        return losses


def _undo(path: Path, data: bytes, damage: Damage, rng: random.Random) -> Loss:
    end, synced_ns = _HEADER.unpack_from(data) if len(data) >= _HEADER.size else (0, 0)
    records = list(_records(data, end))
    if damage == "end" and records:
        records = records[rng.randrange(len(records)) :]
    with path.open("r+b") as file:
        newer = _blocks(file, records, path.stat().st_size) if damage == "some" else {}
        for offset, old, size in reversed(records):
            os.pwrite(file.fileno(), old, offset)
            os.ftruncate(file.fileno(), size)
        for offset, block in newer.items():
            if rng.random() < 0.5:
                os.pwrite(file.fileno(), block, offset)
    return Loss(path, synced_ns // 1_000_000, len(records))


def _records(data: bytes, end: int) -> Iterator[tuple[int, bytes, int]]:
    at = _HEADER.size
    while at < end:
        offset, length, size = _RECORD.unpack_from(data, at)
        at += _RECORD.size
        yield offset, data[at : at + length], size
        at += length


def _blocks(file: object, records: list[tuple[int, bytes, int]], now: int) -> dict[int, bytes]:
    """The blocks of a file that differ from what was synced, as they are now."""
    fd = file.fileno()  # type: ignore[attr-defined]
    begin = min((min(offset, size) for offset, _, size in records), default=now)
    blocks = {
        block
        for offset, old, _ in records
        for block in range(offset // BLOCK * BLOCK, offset + len(old), BLOCK)
    }
    grown = min((size for _, _, size in records), default=now)
    blocks |= set(range(grown // BLOCK * BLOCK, now, BLOCK))
    return {at: os.pread(fd, BLOCK, at) for at in sorted(blocks) if at < now and at + BLOCK > begin}


class Clock:
    """The wall clock of some processes."""

    def __init__(self, name: str, scratch: Path) -> None:
        self._file = scratch / f"clock-{name}"
        self._file.write_bytes(struct.pack("=q", 0))
        self._file.chmod(0o644)
        self.variables = {
            "LD_PRELOAD": str(build("clock", scratch)),
            "CLOCK_FILE": str(self._file),
        }

    def jump(self, seconds: float) -> None:
        """Move the clock by so many seconds, back if they are negative."""
        (before,) = struct.unpack("=q", self._file.read_bytes())
        with self._file.open("r+b") as file:
            file.write(struct.pack("=q", before + int(seconds * 1e9)))
