"""A process that stands for a worker whose code folder contains other files as well.

For each kind of private file and each place it makes an application, opens its files as a worker
does, and lets a job read all of them. It prints a line of JSON for each case.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jobq.core.policies import Permissions
from jobq.errors import ConfigError
from jobq.executors.sandbox.granted_files import Confined, Held
from jobq.executors.sandbox.kernel import this_kernel_to_a_child
from tests.executors.sandbox.lives import live

PLACES = ("", "package", "package/deep/er")
PUBLIC = ("app.py", "data.txt", "keys.py", "ca.pem", "package/page.html", "package/deep/er/x.py")
_TEXTS = {"ca.pem": "-----BEGIN CERTIFICATE-----"}

# What makes a file private: its name, and how the worker knows it.
KINDS: dict[str, tuple[str, str]] = {
    "store": ("jobs", "store"),
    **{f"store{end}": (f"jobs{end}", "store") for end in ("-wal", "-shm", "-lock", "-journal")},
    "open database": ("data.bin", "open"),
    "token": ("tok", "JQ_TOKEN_FILE"),
    "credentials": ("google", "GOOGLE_APPLICATION_CREDENTIALS"),
    "configuration": ("worker.yaml", "--config"),
    "configuration after =": ("worker.conf", "--config="),
    "key of the store's URL": ("client", "url"),
    "settings by name": (".env", ""),
    "more settings by name": (".env.local", ""),
    "key by name": ("tls.key", ""),
    "key by content": ("server.pem", ""),
    "key of ssh by name": ("id_ed25519", ""),
    "secrets by name": ("secrets.yaml", ""),
    "database by name": ("other.sqlite3", ""),
    "log of a database by name": ("other.db-wal", ""),
}


@dataclass
class Outcome:
    """What a job could read, and what the worker said about other permissions."""

    kind: str
    place: str
    readable: list[str] = field(default_factory=list)
    listed: bool = False
    later: bool = False
    """Whether it could read a file that was made after the worker had started."""
    refused: list[str] = field(default_factory=list)
    """What the worker said when a folder with the file was named: that folder, and those above."""
    by_name: bool = False
    """Whether a job could read the file when its path was named."""


def _make(app: Path, private: str) -> None:
    for name in (*PUBLIC, private):
        path = app / name
        path.parent.mkdir(parents=True, exist_ok=True)
        key = "-----BEGIN PRIVATE KEY-----" if name.endswith(".pem") else ""
        path.write_text(_TEXTS.get(name, f"{key}of {name}"))


def run(kind: str, place: str) -> Outcome:
    """Try one kind of file at one place."""
    name, known = KINDS[kind]
    app = Path(os.path.realpath(tempfile.mkdtemp(prefix="beside-")))
    private = os.path.join(place, name)
    outcome = Outcome(kind, place)
    kernel = this_kernel_to_a_child()
    opened: list[Any] = []
    try:
        _make(app, private)
        stores: tuple[str, ...] = ()
        sys.path[:], sys.argv[1:] = [str(app), *_PYTHON], []
        if known == "store":
            stores = (f"sqlite:///{app / place / 'jobs'}?checksums=off",)
        elif known == "url":
            stores = (f"grpcs://host?cert={app}/ca.pem&key={app / private}",)
        elif known == "open":
            (app / private).unlink()
            opened.append(database := sqlite3.connect(app / private))
            database.execute("create table t (x)")
        elif known.startswith("--"):
            sys.argv[1:] = [f"{known}{app / private}"] if "=" in known else [known, private]
            os.chdir(app)
        elif known:
            os.environ[known] = str(app / private)
        _ask(outcome, app, private, stores, kernel)
    finally:
        for database in opened:
            database.close()
        if known.isupper():
            os.environ.pop(known, None)
        os.chdir("/")
        shutil.rmtree(app)
    return outcome


def _ask(outcome: Outcome, app: Path, private: str, stores: tuple[str, ...], kernel: Any) -> None:
    nothing, by_name = Permissions(), Permissions(read=[str(app / private)])
    held = Held([Confined("task t", nothing), Confined("task n", by_name)], stores)
    (app / "later").write_text("x")
    got = live(nothing, held, kernel, lambda: _readable(app))
    outcome.readable = sorted(set(got) - {"listed", "later"})
    outcome.listed, outcome.later = "listed" in got, "later" in got
    outcome.by_name = private in live(by_name, held, kernel, lambda: _readable(app))
    held.close()
    folder = os.path.dirname(private)
    for above in dict.fromkeys((folder, "", "..")):
        said = ""
        try:
            Held([Confined("task t", Permissions(read=[str(app / above)]))], stores).close()
        except ConfigError as error:
            said = str(error)
        outcome.refused.append(said)


def _readable(app: Path) -> list[str]:
    found = []
    for folder, _, names in os.walk(app):
        for name in names:
            path = Path(folder, name)
            with suppress(OSError):
                path.read_bytes()
                found.append(str(path.relative_to(app)))
    with suppress(OSError):
        os.listdir(app)
        found.append("listed")
    return found


def cases() -> Iterator[tuple[str, str]]:
    """Kinds and places."""
    for kind in KINDS:
        for place in PLACES:
            yield kind, place


_PYTHON = [entry for entry in sys.path if "python3" in entry]


def main() -> None:
    for kind, place in cases():
        sys.stdout.write(json.dumps(asdict(run(kind, place))) + "\n")


if __name__ == "__main__":
    main()
