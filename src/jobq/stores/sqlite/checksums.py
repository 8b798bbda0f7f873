"""Checksums of a file's pages: SQLite's extension `cksumvfs`, which comes with apsw.

Each page of such a file ends with a checksum of 8 bytes. SQLite checks it when it reads the page,
so a flipped bit is an error and never a wrong job. The header of the file says whether its pages
have checksums. Every program that writes the file must keep them: a page that another program has
written without one is taken for damaged.
"""

from __future__ import annotations

import contextlib
import ctypes
from functools import cache

import apsw

from jobq.errors import ConfigError

VFS = "cksmvfs"
"""The name under which the extension reads and writes files."""
SIZE = 8
"""Bytes of a checksum, at the end of each page."""
_RESERVED = 20
"""Place of the header's byte that says how many bytes of each page are reserved."""


def used(path: str) -> bool | None:
    """Whether the pages of a file have checksums. None: there is no file yet, or it is empty."""
    header = b""
    with contextlib.suppress(FileNotFoundError), open(path, "rb") as file:
        header = file.read(_RESERVED + 1)
    return header[_RESERVED] == SIZE if len(header) > _RESERVED else None


@cache
def load() -> None:
    """Load the extension into this process."""
    try:
        from apsw import sqlite_extra
    except ImportError:
        raise ConfigError(_MISSING) from None
    connection = apsw.Connection(":memory:")
    try:
        sqlite_extra.load(connection, "cksumvfs")
    except (sqlite_extra.NotAvailable, apsw.Error, ValueError) as e:
        raise ConfigError(f"{_MISSING} ({e})") from None
    finally:
        connection.close()


_MISSING = (
    "checksums of SQLite pages need the extension cksumvfs, which this apsw does not have:"
    " pip install --upgrade apsw"
)


def refused(path: str) -> ConfigError:
    """The error for checksums=yes on a file whose pages have none."""
    return ConfigError(
        f"{path!r} was created without checksums: move its queues to a new file with"
        " `jq-ctl store copy`, or leave out checksums=yes"
    )


def reserve(connection: apsw.Connection) -> None:
    """Let pages of a new file have checksums."""
    size = ctypes.c_int(SIZE)
    connection.file_control("main", apsw.SQLITE_FCNTL_RESERVE_BYTES, ctypes.addressof(size))


def explained(error: BaseException) -> str:
    """The error's text. A wrong checksum is an I/O error for SQLite, which does not say more."""
    code = getattr(error, "extendedresult", None)
    if isinstance(error, apsw.IOError) and code == apsw.SQLITE_IOERR_DATA:
        return "the file is damaged (a page has a wrong checksum): restore it from a backup"
    return str(error)
