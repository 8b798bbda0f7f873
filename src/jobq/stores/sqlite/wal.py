"""Notices that SQLite has ignored a part of the write-ahead log when it opened a file.

After a crash, SQLite reads the log up to the first frame whose checksum is wrong, and takes it for
the end: usually it is the frame that was being written. But a bit that the disk has flipped looks
the same, and every later commit is lost without an error. The later frames are still in the file.
"""

from __future__ import annotations

import contextlib
import os
import struct
from typing import NamedTuple

import apsw

COMMITS = 2
"""Commits behind the end of the log from which on it is damaged. A process that was killed during a
commit leaves one at most, which nobody was told of."""

_HEADER = struct.Struct(">IIIIIIII")
"""Magic number, version, page size, checkpoints, two salts, two checksums."""
_FRAME = struct.Struct(">IIIIII")
"""Page number, pages of the database (0: no commit), two salts, two checksums."""
_MAGIC = 0x377F0682
"""The lowest bit says whether checksums are computed from big-endian numbers."""
_NOOP: int | None = getattr(apsw, "SQLITE_CHECKPOINT_NOOP", None)  # SQLite 3.51


class Damage(NamedTuple):
    """SQLite has used the log up to this frame. `commits` are behind it."""

    frame: int
    commits: int


def damage(connection: apsw.Connection, path: str) -> Damage | None:
    """What SQLite has ignored of the log. Reads the headers of all frames, and the pages of one
    commit.

    Nobody may write meanwhile."""
    if _NOOP is None:
        return None
    connection.execute("SELECT 1 FROM sqlite_schema LIMIT 1").fetchall()  # reads the log
    try:
        used, _ = connection.wal_checkpoint(mode=_NOOP)
    except apsw.Error:
        return None
    with contextlib.suppress(FileNotFoundError), open(f"{path}-wal", "rb") as file:
        return _damage(file.fileno(), max(0, used))
    return None


def _damage(file: int, used: int) -> Damage | None:
    head = os.pread(file, _HEADER.size, 0)
    if len(head) < _HEADER.size:
        return None
    magic, _, page, _, *rest = _HEADER.unpack(head)
    salts, checksum = tuple(rest[:2]), (rest[2], rest[3])
    length = _FRAME.size + page
    frames = (os.fstat(file).st_size - _HEADER.size) // length
    big = bool(magic & 1)
    if magic & ~1 != _MAGIC or _sum(head[:24], (0, 0), big) != checksum:
        # The salts may be the damaged part, so all frames count.
        commits = _commits(file, range(frames), length, None)
        return Damage(0, commits) if commits >= COMMITS and not used else None
    if used >= frames:
        return None
    if used:
        checksum = _FRAME.unpack(os.pread(file, _FRAME.size, _offset(used - 1, length)))[4:]
    for frame in range(used, frames):
        content = os.pread(file, length, _offset(frame, length))
        _, pages, *end = _FRAME.unpack(content[: _FRAME.size])
        checksum = _sum(content[:8] + content[_FRAME.size :], checksum, big)
        if tuple(end) != (*salts, *checksum):
            commits = _commits(file, range(frame, frames), length, salts)
            return Damage(used, commits) if commits >= COMMITS else None
        if pages:
            return None  # a whole commit that SQLite does not use: it has begun another log
    return None


def _commits(file: int, frames: range, length: int, salts: tuple[int, ...] | None) -> int:
    found = 0
    for frame in frames:
        _, pages, *rest = _FRAME.unpack(os.pread(file, _FRAME.size, _offset(frame, length)))
        found += pages != 0 and (salts is None or tuple(rest[:2]) == salts)
    return found


def _offset(frame: int, length: int) -> int:
    return _HEADER.size + frame * length


def _sum(data: bytes, start: tuple[int, ...], big: bool) -> tuple[int, int]:
    """The checksum of a header or a frame, which continues that of the frame before."""
    one, two = start
    numbers = struct.unpack(f"{'>' if big else '<'}{len(data) // 4}I", data)
    for n in range(0, len(numbers), 2):
        one = (one + numbers[n] + two) & 0xFFFFFFFF
        two = (two + numbers[n + 1] + one) & 0xFFFFFFFF
    return one, two
