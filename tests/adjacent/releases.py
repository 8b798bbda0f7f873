"""Source trees of other releases, made to run beside this one."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import apsw
import pytest

from jobq.stores.sqlite import schema

ROOT = Path(__file__).parents[2]
THIS = ROOT / "src"


def _replace(path: Path, pattern: str, value: str) -> None:
    """Change one definition of a tree. Fails if it is not there any more, or is there twice."""
    text, n = re.subn(pattern, value, path.read_text("utf-8"), flags=re.MULTILINE)
    assert n == 1, f"{path.name} has {n} lines like {pattern}: adapt tests/adjacent/releases.py"
    path.write_text(text, "utf-8")


def next_release(folder: Path, *, changes_data: bool = False) -> Path:
    """This tree as the next release could be: a newer layout, and another function library.

    The layout only adds a column to every table, and a table, unless `changes_data`.
    """
    source = folder / "next" / "src"
    shutil.copytree(THIS, source, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    stores = source / "jobq" / "stores"
    schema, version = stores / "sqlite" / "schema.py", stores / "valkey" / "layout.py"
    _replace(source / "jobq/core/version.py", r'^__version__ = ".*"', '__version__ = "9.9.0"')
    for path in (schema, version):
        _replace(path, r"^LATEST = \d+", "LATEST = 99")
        if changes_data:
            _replace(path, r"^OLDEST = \d+", "OLDEST = 99")
    _replace(stores / "valkey" / "library.py", r'^VERSION = ".*"', 'VERSION = "jobq_v99"')
    migrations = stores / "sqlite" / "migrations"
    newest = max(int(path.stem) for path in migrations.glob("*.sql"))
    for number in range(newest + 1, 99):
        (migrations / f"{number:04}.sql").write_text("")
    adding = [f"ALTER TABLE {table} ADD COLUMN extra TEXT;\n" for table in _tables()]
    (migrations / "0099.sql").write_text(
        "".join(adding) + "CREATE TABLE extras (name TEXT PRIMARY KEY);\n"
    )
    return source


def _tables() -> list[str]:
    connection = apsw.Connection(":memory:")
    schema.migrate(connection)
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
    return [name for (name,) in rows if not name.startswith("sqlite_")]


def previous_release(folder: Path) -> Path:
    """The last release before this one, from git. JQ_PREVIOUS names another commit."""
    wanted = os.environ.get("JQ_PREVIOUS") or _last_tag()
    if wanted is None:
        pytest.skip("no tag of an earlier release in this clone: git fetch --tags")
    folder = folder / "previous"
    folder.mkdir()
    archive = subprocess.run(
        ["git", "archive", wanted, "src"], cwd=ROOT, capture_output=True, check=True
    )
    subprocess.run(["tar", "x", "-C", folder], input=archive.stdout, check=True)
    if not (folder / "src/jobq/core/version.py").exists():
        pytest.skip(f"{wanted} wrote no layout yet: its workers and producers stop for an upgrade")
    return folder / "src"


def _last_tag() -> str | None:
    if shutil.which("git") is None:
        return None
    command = ["git", "describe", "--tags", "--match", "v*", "--abbrev=0", "HEAD^"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return done.stdout.strip() or None
