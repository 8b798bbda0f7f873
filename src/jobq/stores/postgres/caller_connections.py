"""The connections of callers: psycopg's, SQLAlchemy's and Django's, each with a psycopg connection
inside.

Classes of SQLAlchemy and Django are recognised by their names, so jobq imports neither. Subclasses
of them may be anywhere: applications, SQLModel and Flask-SQLAlchemy have sessions of their own.
"""

from __future__ import annotations

from typing import Any

import psycopg
from psycopg import pq

from jobq.errors import ConfigError

Raw = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]

_KNOWN = (
    "a connection of psycopg 3, a Session or Connection of SQLAlchemy 2 with the psycopg driver "
    "(postgresql+psycopg://), or django.db.connection"
)


_ASYNC = frozenset({"AsyncSession", "AsyncConnection", "async_scoped_session"})
_CLASSES = {
    "sqlalchemy": frozenset({"Session", "Connection", "scoped_session"}) | _ASYNC,
    "django": frozenset({"BaseDatabaseWrapper", "ConnectionProxy"}),
}


def check(connection: object) -> None:
    """ConfigError if jobq cannot use this kind of connection."""
    known = isinstance(connection, (psycopg.Connection, psycopg.AsyncConnection))
    if not known and not _library(connection):
        raise ConfigError(f"jobq.transaction({_shown(connection)}): give {_KNOWN}")


def blocking(connection: Any) -> psycopg.Connection[Any]:
    """The psycopg connection inside a blocking connection."""
    if isinstance(connection, psycopg.AsyncConnection) or _of_asyncio(connection):
        raise ConfigError(
            f"jobq.transaction({_shown(connection)}): an async connection works with `await "
            "task.enqueue(…)`, not with `.sync`"
        )
    raw = _blocking(connection)
    if not isinstance(raw, psycopg.Connection):
        raise _unusable(connection, raw)
    return raw


async def awaited(connection: Any) -> Raw:
    """The same for a connection of any kind, from an event loop."""
    raw = await _awaited(connection)
    if not isinstance(raw, (psycopg.Connection, psycopg.AsyncConnection)):
        raise _unusable(connection, raw)
    return raw


def _blocking(connection: Any) -> Any:
    library = _library(connection)
    if library == "sqlalchemy":
        if hasattr(connection, "get_bind"):  # a Session
            connection = connection.connection()
        if hasattr(connection, "in_transaction") and not connection.in_transaction():
            connection.exec_driver_sql("SELECT 1")  # the Connection begins a transaction
        return connection.connection.driver_connection
    if library == "django":
        connection.ensure_connection()
        if connection.get_autocommit():
            raise ConfigError(
                "jobq.transaction(): no transaction is open on this Django connection: use it "
                "inside transaction.atomic()"
            )
        return connection.connection
    return connection


async def _awaited(connection: Any) -> Any:
    if not _of_asyncio(connection):
        return _blocking(connection)
    if hasattr(connection, "get_bind"):  # an AsyncSession
        connection = await connection.connection()
    if not connection.in_transaction():
        await connection.exec_driver_sql("SELECT 1")
    return (await connection.get_raw_connection()).driver_connection


def must_begin(raw: Raw) -> bool:
    """Whether the transaction has not begun yet, and psycopg begins it with the next statement.

    The caller has locked the connection: while other tasks use it, it looks busy. ConfigError if no
    transaction is open and none begins by itself.
    """
    if raw.closed:
        raise ConfigError("jobq.transaction(): the connection is closed")
    status = raw.pgconn.transaction_status
    if status == pq.TransactionStatus.INERROR:
        raise ConfigError(
            "jobq.transaction(): the transaction has failed, so nothing can be added to it: roll "
            "it back"
        )
    if raw.pgconn.pipeline_status != pq.PipelineStatus.OFF:
        raise ConfigError("jobq.transaction(): leave conn.pipeline() before you enqueue")
    if status == pq.TransactionStatus.INTRANS:
        return False
    if status != pq.TransactionStatus.IDLE:
        raise ConfigError("jobq.transaction(): the connection is busy with another statement")
    if raw.autocommit:
        raise ConfigError(
            "jobq.transaction(): no transaction is open, and the connection is in autocommit mode: "
            "begin one with conn.transaction()"
        )
    return True


def two_phase(raw: Raw) -> bool:
    """Whether the transaction will be prepared (`tpc_begin`), so that it must not send NOTIFY."""
    return getattr(raw, "_tpc", None) is not None  # psycopg has no public name for it


def _of_asyncio(connection: object) -> bool:
    return bool(_classes(connection, "sqlalchemy") & _ASYNC)


def _library(connection: object) -> str:
    """The library whose connection or session this is; empty: none."""
    return next((name for name in _CLASSES if _classes(connection, name)), "")


def _classes(connection: object, library: str) -> frozenset[str]:
    """Which classes of the library this is an instance of, among those that jobq can use."""
    bases = type(connection).__mro__
    found = {c.__name__ for c in bases if c.__module__.partition(".")[0] == library}
    return _CLASSES[library] & found


def _unusable(connection: object, raw: object) -> ConfigError:
    return ConfigError(
        f"jobq.transaction({_shown(connection)}): its driver is {_shown(raw)}; give {_KNOWN}"
    )


def _shown(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
