"""Files that a handler must not read because they lie beside the code: stores, keys, settings."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from urllib.parse import parse_qsl, unquote, urlsplit

_OF_A_DATABASE = ("", "-wal", "-shm", "-lock", "-journal")
"""A SQLite database consists of these files. Not all of them exist at all times."""
_SQLITE = b"SQLite format 3\0"

_NAMED = re.compile(
    r"(^|[_-]|ssl|pg|kube)(keys?|tokens?|secrets?|credentials?|password|passfile|config)($|[_-])",
    re.IGNORECASE,
)
"""Options and variables that name a file with something secret in it, e.g. `--tls-key`, `sslkey`,
JQ_TOKEN_FILE, but not TOKENIZER_FILE."""

# Files that are taken for secrets by their names, wherever they lie beside code.
_NAMES = re.compile(
    r"\.env(\..+)?|\.(netrc|pgpass|pypirc|npmrc|git-credentials|htpasswd)"
    r"|\.(ssh|aws|gnupg|kube)"
    r"|(credentials|secrets)\.(json|toml|ya?ml)"
    r"|id_(rsa|dsa|ecdsa|ed25519)"
    r"|.+\.(key|p12|pfx|jks|keystore)"
    r"|.+\.(db|db3|sqlite|sqlite3)(-wal|-shm|-lock|-journal)?",
    re.IGNORECASE,
)
_KEY = b"PRIVATE KEY"
_START = 64 * 1024
"""Bytes of a .pem file that are searched for a key. A certificate may come before it."""
_NOT_SEARCHED = frozenset({"__pycache__", "node_modules", "site-packages", "dist-packages"})
MAX_SEARCHED = 20_000
"""Files beside the code that are looked at. A worker takes about 50 ms for them when it starts."""


def known(
    stores: Iterable[str], *, variables: Mapping[str, str], arguments: Sequence[str]
) -> dict[str, str]:
    """Secret files that this process knows of, by path without links: what each of them is.

    `stores` are the URLs of its stores. Files of a database count even if they do not exist yet.
    """
    found: dict[str, str] = {}
    for path in _open_databases():
        found |= _database(path, "a database that this worker has open")
    for url in stores:
        parts = urlsplit(url)
        if parts.scheme.lower() == "sqlite" and len(parts.path) > 1:
            found |= _database(unquote(parts.path)[1:], "a store of this worker")
        for option, value in parse_qsl(parts.query):
            if _NAMED.search(option):
                found |= _file(value, f"the file of {option}= in a store's URL")
    for name, value in variables.items():
        if _NAMED.search(name):
            found |= _file(value, f"the file that {name} names")
    for option, value in _options(arguments):
        if _NAMED.search(option):
            found |= _file(value, f"the file of {option}")
    return found


def search(folder: str, skip: Iterable[str] = ()) -> Iterator[str]:
    """Secret files below a folder, as far as their names tell. The nearest ones come first.

    At most MAX_SEARCHED files are looked at. `skip` are folders to leave out.
    """
    left, looked, skipped = deque([folder]), 0, frozenset(skip)
    while left and looked < MAX_SEARCHED:
        with suppress(OSError), os.scandir(left.popleft()) as entries:
            for entry in entries:
                looked += 1
                if entry.path in skipped or entry.is_symlink():
                    continue
                if _NAMES.fullmatch(entry.name) or _is_key(entry):
                    yield entry.path
                elif entry.is_dir() and _may_hold_code(entry):
                    left.append(entry.path)


def _may_hold_code(folder: os.DirEntry[str]) -> bool:
    """Whether to search a folder: not if it is made of installed packages."""
    if folder.name in _NOT_SEARCHED or folder.name.startswith("."):
        return False
    return not os.path.exists(os.path.join(folder.path, "pyvenv.cfg"))


def _is_key(entry: os.DirEntry[str]) -> bool:
    """Whether it is a .pem file with a private key. Most have certificates, which are public."""
    if not entry.name.lower().endswith(".pem") or not entry.is_file():
        return False
    try:
        with open(entry.path, "rb") as file:
            return _KEY in file.read(_START)
    except OSError:
        return False  # the child cannot read it either


def _database(path: str, what: str) -> dict[str, str]:
    # jobq locks beside the path, and SQLite writes beside the file that a link leads to.
    link = os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
    files = (link, os.path.realpath(path))
    return {file + suffix: what for file in files for suffix in _OF_A_DATABASE}


def _file(value: str, what: str) -> dict[str, str]:
    try:
        real = os.path.realpath(value)
        return {real: what} if value and os.path.isfile(real) else {}
    except (OSError, ValueError):  # a text that is no path
        return {}


def _options(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The options of a command line with their values: `--name value` and `--name=value`."""
    for place, argument in enumerate(arguments):
        if argument.startswith("-"):
            option, equals, value = argument.partition("=")
            yield option, value if equals else "".join(arguments[place + 1 : place + 2])


def _open_databases() -> Iterator[str]:
    """SQLite databases that this process has open.

    Their descriptors are read, and no file is opened: closing it would release SQLite's locks.
    """
    if sys.platform != "linux":
        return
    for number in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            regular = stat.S_ISREG(os.fstat(int(number)).st_mode)
            if regular and os.pread(int(number), len(_SQLITE), 0) == _SQLITE:
                yield os.readlink(f"/proc/self/fd/{number}")
