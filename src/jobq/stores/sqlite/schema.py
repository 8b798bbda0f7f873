"""The schema of a database file: numbered migrations, applied in order, each once.

`migrations/0001.sql` is the schema of jobq 0.1, and every later file changes it. A new database
takes all of them, so a migrated file and a new one have the same schema. `meta` holds the number of
the last migration (`schema`), the oldest schema whose code can work on the file (`oldest`), and the
release that wrote both (`release`): see core/rules/layout.py.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from importlib.resources import files

import apsw

from jobq.core.rules.layout import Layout, refuse_newer, refuse_running
from jobq.core.version import __version__
from jobq.errors import ConfigError, CorruptStore

LATEST = 2
"""The number of the newest migration."""
OLDEST = 2
"""The oldest schema whose code can work on a file of schema LATEST. Raise it with a migration that
changes what the statements of older releases read or write; keep it for one that only adds."""


def migrate(connection: apsw.Connection) -> str:
    """Bring the database up to date inside the caller's transaction, and return its log's id.

    ConfigError: the file belongs to another program or a newer jobq, or is in use by an older one.
    CorruptStore: the file does not say which schema it has.
    """
    known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'meta'").fetchone()
    if known is None and connection.execute("SELECT 1 FROM sqlite_master LIMIT 1").fetchone():
        raise ConfigError(
            "this SQLite file belongs to another program: it has tables, but not those of jobq"
        )
    version = 0 if known is None else _layout(connection).layout
    if known is not None:
        check(connection)
    if 0 < version < OLDEST:
        refuse_running(connection.filename, version, LATEST, _running(connection))
    for number in range(version + 1, LATEST + 1):
        for statement in statements(number):
            connection.execute(statement)
    if known is None:
        connection.execute(
            "INSERT INTO meta (name, value) VALUES ('log', ?)", (uuid.uuid4().hex[:12],)
        )
    if version < LATEST:
        facts = {"schema": LATEST, "oldest": OLDEST, "release": __version__}
        for name, value in facts.items():
            connection.execute(
                "INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)", (name, str(value))
            )
    log = _meta(connection).get("log")
    if log is None:
        raise CorruptStore(f"{connection.filename} does not say which log its events belong to")
    return log


def check(connection: apsw.Connection) -> None:
    """ConfigError if a newer jobq has given the file a schema that this code would damage.

    Runs when the file is opened, and in a write transaction after another process has written.
    """
    row = connection.execute("SELECT value FROM meta WHERE name = 'oldest'").fetchone()
    if row != (str(OLDEST),):  # nearly always equal
        refuse_newer(connection.filename, _layout(connection), LATEST)


def statements(number: int) -> Iterator[str]:
    """The statements of one migration."""
    text = files("jobq.stores.sqlite").joinpath("migrations", f"{number:04}.sql").read_text("utf-8")
    return (statement for statement in text.split(";\n") if statement.strip())


def every_statement() -> Iterator[str]:
    """The statements of all migrations, in order: they make a new database."""
    for number in range(1, LATEST + 1):
        yield from statements(number)


def _layout(connection: apsw.Connection) -> Layout:
    """What the file says about its schema. CorruptStore if that cannot be read."""
    try:
        facts = _meta(connection)
        found = Layout(
            layout=int(facts["schema"]),
            oldest=int(facts.get("oldest", facts["schema"])),  # jobq 0.1 wrote a schema only
            release=facts.get("release", "?"),
        )
        if found.layout < 1:
            raise ValueError(f"schema {found.layout}")
    except (LookupError, TypeError, ValueError) as e:
        raise CorruptStore(
            f"{connection.filename} does not say which layout its jobs have: {e!r}"
        ) from e
    return found


def _meta(connection: apsw.Connection) -> dict[str, str]:
    return dict(connection.execute("SELECT name, value FROM meta"))


def _running(connection: apsw.Connection) -> list[str]:
    """Workers whose last heartbeat has not expired, by the machine's clock."""
    now_ms = time.time_ns() // 1_000_000
    rows = connection.execute("SELECT name FROM workers WHERE until_ms > ?", (now_ms,))
    return [name for (name,) in rows]
