"""A dialect has the statements that the shared logic names, and SQLite has no others."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobq.stores import relational, sqlite
from jobq.stores.postgres.queries import SQL as POSTGRES
from jobq.stores.relational.statements import Statements, load
from jobq.stores.sqlite.statements import SQL as SQLITE

DIALECTS = {"sqlite": SQLITE, "postgres": POSTGRES}
FILES = Statements.__struct_fields__


def modules(package: str) -> Iterator[ast.Module]:
    """The modules of a package."""
    for path in sorted(Path(package).glob("*.py")):
        yield ast.parse(path.read_text("utf-8"))


def strings(module: ast.Module) -> set[str]:
    """All strings of a module."""
    return {
        node.value
        for node in ast.walk(module)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def named(module: ast.Module) -> set[tuple[str, str]]:
    """The statements that a module names: file and name.

    `tx.sql.hot[statement]` may stand for any string of the module that SQLite has in that file."""
    found = set()
    for node in ast.walk(module):
        if not (
            isinstance(node, ast.Subscript)
            and isinstance(node.value, ast.Attribute)
            and ast.unparse(node.value.value) in ("tx.sql", "self.sql")
        ):
            continue
        file = node.value.attr
        if isinstance(node.slice, ast.Constant):
            found.add((file, str(node.slice.value)))
        else:
            found |= {(file, name) for name in strings(module) & getattr(SQLITE, file).keys()}
    return found


SHARED = {name for module in modules(relational.__path__[0]) for name in named(module)}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_dialect_has_every_statement_that_the_shared_logic_names(dialect: str) -> None:
    assert len(SHARED) > 100
    missing = {
        f"{file}.sql: {name}"
        for file, name in SHARED
        if name not in getattr(DIALECTS[dialect], file)
    }
    assert not missing


def test_sqlite_has_no_statement_that_nobody_names() -> None:
    own = {text for module in modules(sqlite.__path__[0]) for text in strings(module)}
    unused = {
        f"{file}.sql: {name}"
        for file in FILES
        for name in getattr(SQLITE, file)
        if (file, name) not in SHARED and name not in own
    }
    assert not unused


def test_a_name_that_appears_twice_in_a_file_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "twice" / "sql").mkdir(parents=True)
    (tmp_path / "twice" / "__init__.py").touch()
    block = "\n-- name: a: one\nSELECT {job};\n"
    (tmp_path / "twice" / "sql" / "hot.sql").write_text(block)
    monkeypatch.syspath_prepend(tmp_path)
    assert load("twice", "hot.sql", {"job": "pk, id"}) == {"a": "SELECT pk, id;"}
    (tmp_path / "twice" / "sql" / "hot.sql").write_text(block * 2)
    with pytest.raises(ValueError, match="'a' appears twice"):
        load("twice", "hot.sql", {"job": "pk, id"})
