"""The schema: numbered migrations, applied in order, each once, under a lock.

`migrations/0001.sql` is the first schema, and every later file changes it. A new database takes all
of them, so a migrated database and a new one have the same tables. `meta` holds the number of the
last migration (`schema`), the oldest schema whose code can work on the tables (`oldest`), and the
release that wrote both (`release`): see core/rules/layout.py.
"""

from __future__ import annotations

import uuid
from importlib.resources import files

from jobq.core.rules.layout import Layout, refuse_newer, refuse_running
from jobq.core.version import __version__
from jobq.errors import ConfigError, CorruptStore
from jobq.stores.postgres.address import Address
from jobq.stores.postgres.link import Link

LATEST = 1
"""The number of the newest migration."""
OLDEST = 1
"""The oldest schema whose code can work on tables of schema LATEST. Raise it with a migration that
changes what the statements of older releases read or write; keep it for one that only adds."""

MIGRATION_S = 3600.0
"""Seconds that a migration may take, with the wait for another process that migrates."""

_LOCK = "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))"
_REREAD = "SELECT 1 FROM pg_description LIMIT 0"
"""Makes a session forget what it remembers of the catalog. A wait for an advisory lock does not: it
would still believe that a schema is missing which another process has made meanwhile. The first
lock of a table in a transaction does, and no other statement here reads this table."""
_EXISTS = "SELECT to_regclass($1::text)::text"
_TABLES = (
    "SELECT relname::text FROM pg_class WHERE relnamespace = to_regnamespace($1::text) LIMIT 1"
)
_SCHEMA = "SELECT to_regnamespace($1::text)::text"
_META = 'SELECT name, value FROM "{schema}".meta'
_STAMP = """
INSERT INTO meta (name, value) SELECT * FROM unnest($1::text[], $2::text[])
ON CONFLICT (name) DO UPDATE SET value = excluded.value
"""
_LOG = "INSERT INTO meta (name, value) VALUES ('log', $1)"
_RUNNING = """
SELECT name FROM workers WHERE until_ms > extract(epoch FROM clock_timestamp()) * 1000
"""
COMMAND = "jq-ctl store migrate"


def prepare(link: Link, address: Address) -> str:
    """Bring the tables up to date, and return the id of their log.

    ConfigError: the schema belongs to another program or a newer jobq, is in use by an older one,
    or has to be migrated and the URL says migrate=no. CorruptStore: the tables do not say which
    layout they have.
    """
    link.command(b"BEGIN")
    found = _found(link, address)
    if found is None or found.layout < LATEST:
        if not address.migrate:
            raise ConfigError(_needed(address, found))
        # The role may have other defaults. A statement must see what others have done before it.
        link.command(b"COMMIT")
        link.command(b"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE")
        _migrate(link, address)
    log = dict(link.execute(_META.format(schema=address.schema)).fetchall()).get("log")
    link.command(b"COMMIT")
    link.wait()
    if log is None:
        raise CorruptStore(f"{address.shown} does not say which log its events belong to")
    return str(log)


def pending(link: Link, address: Address) -> str:
    """The SQL that a migration would run, for a DBA; empty if the tables are up to date."""
    link.command(b"BEGIN READ ONLY")
    found = _found(link, address)
    link.command(b"ROLLBACK")
    link.wait()
    if found is not None and found.layout >= LATEST:
        return ""
    return script(address, 0 if found is None else found.layout)


def script(address: Address, layout: int) -> str:
    """The SQL that migrates from this layout (0: there are no tables), as one transaction."""
    parts = [f"-- jobq {__version__}: schema {address.schema}, layout {layout} to {LATEST}\nBEGIN;"]
    if not layout:
        # The right to create a schema is checked even if the schema exists.
        parts.append(
            f"DO $$ BEGIN IF to_regnamespace('{address.schema}') IS NULL THEN\n"
            f'    CREATE SCHEMA "{address.schema}";\nEND IF; END $$;'
        )
    parts.append(f'SET LOCAL search_path TO "{address.schema}", pg_catalog;')
    parts.extend(text(number).rstrip() for number in range(layout + 1, LATEST + 1))
    facts = dict(_facts())
    if not layout:
        facts["log"] = _new_log()
    rows = ", ".join(f"('{name}', '{value}')" for name, value in facts.items())
    parts.append(
        f"INSERT INTO meta (name, value) VALUES {rows}\n"
        "ON CONFLICT (name) DO UPDATE SET value = excluded.value;\nCOMMIT;\n"
    )
    return "\n\n".join(parts)


def check(oldest: str | None, link: Link, address: Address) -> None:
    """ConfigError if a newer jobq has given the tables a layout that this code would damage."""
    if oldest != str(OLDEST):  # nearly always equal
        found = _found(link, address)
        if found is None:
            raise ConfigError(_needed(address, None))
        refuse_newer(address.shown, found, LATEST)


def text(number: int) -> str:
    """The SQL of one migration."""
    name = f"{number:04}.sql"
    return files("jobq.stores.postgres").joinpath("migrations", name).read_text("utf-8")


def _migrate(link: Link, address: Address) -> None:
    """Run the migrations that are missing. Another process may have done so meanwhile."""
    link.command(b"SET LOCAL statement_timeout = 0")
    link.command(b"SET LOCAL lock_timeout = 0")
    link.execute(_LOCK, (f"jobq:{address.schema}",)).fetchone()
    link.execute(_REREAD)
    found = _found(link, address)
    layout = 0 if found is None else found.layout
    if found is None:
        _refuse_strangers(link, address)
        (exists,) = link.execute(_SCHEMA, (address.schema,)).fetchone() or (None,)
        if exists is None:
            link.command(f'CREATE SCHEMA "{address.schema}"'.encode())
    link.command(f'SET LOCAL search_path TO "{address.schema}", pg_catalog'.encode())
    link.wait()
    if 0 < layout < OLDEST:
        running = [name for (name,) in link.execute(_RUNNING).fetchall()]
        refuse_running(address.shown, layout, LATEST, running)
    for number in range(layout + 1, LATEST + 1):
        link.script(text(number))
    if layout == 0:
        link.execute(_LOG, (_new_log(),))
    if layout < LATEST:
        facts = _facts()
        link.execute(_STAMP, ([name for name, _ in facts], [value for _, value in facts]))


def _found(link: Link, address: Address) -> Layout | None:
    """What the tables say about their layout; None: there are none."""
    (exists,) = link.execute(_EXISTS, (f"{address.schema}.meta",)).fetchone() or (None,)
    if exists is None:
        return None
    facts = dict(link.execute(_META.format(schema=address.schema)).fetchall())
    try:
        found = Layout(
            layout=int(facts["schema"]), oldest=int(facts["oldest"]), release=facts["release"]
        )
    except (LookupError, ValueError) as e:
        raise CorruptStore(f"{address.shown} does not say which layout its jobs have: {e!r}") from e
    refuse_newer(address.shown, found, LATEST)
    return found


def _refuse_strangers(link: Link, address: Address) -> None:
    row = link.execute(_TABLES, (address.schema,)).fetchone()
    if row is not None:
        raise ConfigError(
            f"the schema {address.schema!r} at {address.shown} belongs to another program: it has "
            f"{row[0]!r}, but not the tables of jobq; choose another one with ?schema=name"
        )


def _needed(address: Address, found: Layout | None) -> str:
    state = "no tables" if found is None else f"layout {found.layout}"
    return (
        f"the schema {address.schema!r} at {address.shown} has {state}, and jobq {__version__} "
        f"needs layout {LATEST}: run `{COMMAND} --url …` with a role that may change the schema "
        f"(--dry-run prints the SQL), or remove migrate=no from the URL"
    )


def _facts() -> list[tuple[str, str]]:
    return [("schema", str(LATEST)), ("oldest", str(OLDEST)), ("release", __version__)]


def _new_log() -> str:
    return uuid.uuid4().hex[:12]
