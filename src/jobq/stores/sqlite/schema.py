"""The schema of a database file: numbered migrations, applied in order, each once.

`migrations/0001.sql` is the schema of jobq 0.1 and every later file changes it. A new database takes all of them, so there
is one way to a schema and not two. `meta.schema` holds the number of the last one applied.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from importlib.resources import files

import apsw

from jobq.errors import ConfigError

LATEST = 2


def migrate(connection: apsw.Connection) -> str:
    """Bring the database up to date inside the caller's transaction. Returns the id of its event log, made once."""
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone()
    if known is None and connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
        raise ConfigError(
            "this SQLite file belongs to another program: it has tables, but not those of jobq"
        )
    version = 0 if known is None else int(_meta(connection)["schema"])
    if version > LATEST:
        raise ConfigError(
            f"this file has jobq schema {version}, and this version of jobq knows schemas up to {LATEST}: "
            "upgrade jobq, or use the version that wrote the file"
        )
    for number in range(version + 1, LATEST + 1):
        for statement in statements(number):
            connection.execute(statement)
    if known is None:
        connection.execute("INSERT INTO meta VALUES ('log', ?)", (uuid.uuid4().hex[:12],))
    if version < LATEST:
        connection.execute("INSERT OR REPLACE INTO meta VALUES ('schema', ?)", (str(LATEST),))
    return _meta(connection)["log"]


def statements(number: int) -> Iterator[str]:
    """The statements of one migration."""
    text = files("jobq.stores.sqlite").joinpath("migrations", f"{number:04}.sql").read_text("utf-8")
    return (statement for statement in text.split(";\n") if statement.strip())


def every_statement() -> Iterator[str]:
    """The statements of all migrations, in order: they make a new database."""
    for number in range(1, LATEST + 1):
        yield from statements(number)


def _meta(connection: apsw.Connection) -> dict[str, str]:
    return dict(connection.execute("SELECT name, value FROM meta"))
