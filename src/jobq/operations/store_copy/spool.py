"""A long list on disk that is written forwards and read backwards."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import NamedTuple

import msgspec


class Found(NamedTuple):
    """A job that a listing showed."""

    id: str
    due_ms: int


class Spool:
    """Pages of found jobs. A listing shows the newest job first, and a copy stores the oldest
    first, so the whole list is needed before the first job can move. Ten million jobs take about
    400 MB of disk and no memory."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (`close` closes it)
        self._pages: list[tuple[int, int]] = []
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(list[Found]).decode

    def add(self, page: list[Found]) -> None:
        """Append a page."""
        data = self._encode(page)
        self._pages.append((self._file.tell(), len(data)))
        self._file.write(data)

    def backwards(self) -> Iterator[list[Found]]:
        """The pages, the last one first, each in reverse order."""
        for start, size in reversed(self._pages):
            self._file.seek(start)
            yield self._decode(self._file.read(size))[::-1]

    def close(self) -> None:
        """Delete the file."""
        self._file.close()
