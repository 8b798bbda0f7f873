"""jobq.transaction with the connections of SQLAlchemy and Django."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from typing import Any

import django
import psycopg
import pytest
import sqlalchemy
from django.conf import settings
from django.db import connections
from django.db import transaction as django_transaction
from django.db.backends.postgresql.base import DatabaseWrapper
from django.db.utils import ConnectionHandler
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from jobq import ConfigError, Queue, State, transaction
from tests.stores.postgres.callers import add_to
from tests.stores.postgres.servers import ask

INSERT = "insert into orders values (1)"


@pytest.fixture
def queue(store: str) -> Queue:
    """A queue that no event loop has opened."""
    return Queue("work", store)


def of_sqlalchemy(url: str, driver: str = "psycopg") -> str:
    return url.replace("postgresql://", f"postgresql+{driver}://")


def stored(queue: Queue, url: str) -> tuple[int, int]:
    """How many jobs wait, and how many rows the caller has."""
    ((rows,),) = ask(url, "select count(*) from orders")
    return queue.sync.counts()[State.WAITING], rows


def test_a_sqlalchemy_session_commits_jobs_and_rows_together(queue: Queue, url: str) -> None:
    add = add_to(queue)
    engine = sqlalchemy.create_engine(of_sqlalchemy(url))
    with Session(engine) as session:
        with transaction(session):
            add.sync.enqueue(1)
            session.execute(sqlalchemy.text(INSERT))
        session.rollback()
        assert stored(queue, url) == (0, 0)
        with session.begin(), transaction(session):
            session.execute(sqlalchemy.text(INSERT))
            add.sync.enqueue_many([(1,), (2,)])
    assert stored(queue, url) == (2, 1)
    scoped = scoped_session(sessionmaker(engine))
    with transaction(scoped):
        add.sync.enqueue(1)
    scoped.commit()
    scoped.remove()
    assert stored(queue, url) == (3, 1)
    engine.dispose()


def test_a_sqlalchemy_connection_commits_jobs_that_come_first(queue: Queue, url: str) -> None:
    add = add_to(queue)
    engine = sqlalchemy.create_engine(of_sqlalchemy(url))
    with engine.connect() as conn:
        with transaction(conn):
            add.sync.enqueue(1)
        conn.commit()
        with transaction(conn):
            add.sync.enqueue(2)
        conn.rollback()
    with engine.begin() as conn, transaction(conn):
        conn.execute(sqlalchemy.text(INSERT))
        add.sync.enqueue(3)
    assert stored(queue, url) == (2, 1)
    engine.dispose()


@pytest.fixture
def of_asyncio() -> Any:
    """SQLAlchemy's asyncio module."""
    pytest.importorskip("greenlet", reason="pip install 'sqlalchemy[asyncio]'")
    return importlib.import_module("sqlalchemy.ext.asyncio")


async def test_an_async_session_commits_jobs_and_rows_together(
    queue: Queue, url: str, of_asyncio: Any
) -> None:
    add = add_to(queue)
    engine = of_asyncio.create_async_engine(of_sqlalchemy(url))
    async with queue, of_asyncio.AsyncSession(engine) as session:
        async with transaction(session):
            await add.enqueue(1)
        await session.rollback()
        assert (await queue.counts())[State.WAITING] == 0
        async with session.begin(), transaction(session):
            await session.execute(sqlalchemy.text(INSERT))
            await add.enqueue(1)
        assert (await queue.counts())[State.WAITING] == 1
        async with engine.connect() as conn, transaction(conn):
            await add.enqueue(2)
            await conn.commit()
        assert (await queue.counts())[State.WAITING] == 2
    assert ask(url, "select count(*) from orders") == [(1,)]
    await engine.dispose()


async def test_another_driver_of_sqlalchemy_is_refused(
    queue: Queue, url: str, of_asyncio: Any
) -> None:
    pytest.importorskip("asyncpg")
    add = add_to(queue)
    engine = of_asyncio.create_async_engine(of_sqlalchemy(url, "asyncpg"))
    async with queue, engine.connect() as conn, transaction(conn):
        with pytest.raises(ConfigError, match=r"asyncpg.*with the psycopg driver"):
            await add.enqueue(1)
    await engine.dispose()


@pytest.fixture
def django_database(url: str) -> Iterator[Any]:
    """A connection of Django beside those of its settings, which other tests may have made."""
    parts = psycopg.conninfo.conninfo_to_dict(url)
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts["dbname"],
        "USER": parts["user"],
        "HOST": parts["host"],
        "PORT": parts["port"],
    }
    if not settings.configured:
        settings.configure(USE_TZ=True)
        django.setup()
    connections.settings["caller"] = ConnectionHandler({"default": database}).settings["default"]
    yield connections["caller"]
    connections["caller"].close()
    del connections["caller"], connections.settings["caller"]


def test_djangos_connection_commits_jobs_and_rows_together(
    queue: Queue, url: str, django_database: Any
) -> None:
    add = add_to(queue)
    with django_transaction.atomic(using="caller"), transaction(django_database):
        add.sync.enqueue(1)
        with django_database.cursor() as cursor:
            cursor.execute(INSERT)
    assert stored(queue, url) == (1, 1)
    with django_transaction.atomic(using="caller"), transaction(django_database):
        add.sync.enqueue(2)
        django_transaction.set_rollback(True, using="caller")
    assert stored(queue, url) == (1, 1)
    with transaction(django_database), pytest.raises(ConfigError, match=r"transaction\.atomic"):
        add.sync.enqueue(3)


class OwnSession(Session):
    """As an application, SQLModel or Flask-SQLAlchemy define it."""


class OwnWrapper(DatabaseWrapper):  # type: ignore[misc]
    """As packages define it that extend Django's PostgreSQL backend."""


def test_subclasses_of_an_application_are_recognised(
    queue: Queue, url: str, django_database: Any
) -> None:
    add = add_to(queue)
    engine = sqlalchemy.create_engine(of_sqlalchemy(url))
    with OwnSession(engine) as session, transaction(session):
        add.sync.enqueue(1)
        session.commit()
    engine.dispose()
    wrapper = OwnWrapper(django_database.settings_dict, "own")
    wrapper.set_autocommit(False)
    with transaction(wrapper):
        add.sync.enqueue(1)
    wrapper.commit()
    wrapper.close()
    assert stored(queue, url) == (2, 0)


async def test_subclasses_of_async_sessions_are_recognised(
    queue: Queue, url: str, of_asyncio: Any
) -> None:
    add = add_to(queue)
    engine = of_asyncio.create_async_engine(of_sqlalchemy(url))
    own = type("OwnAsyncSession", (of_asyncio.AsyncSession,), {"__module__": "app"})
    async with queue, own(engine) as session:
        async with transaction(session):
            await add.enqueue(1)
        await session.commit()
        assert (await queue.counts())[State.WAITING] == 1
    await engine.dispose()


def test_other_objects_of_these_libraries_are_refused_with_words(queue: Queue, url: str) -> None:
    add = add_to(queue)
    engine = sqlalchemy.create_engine(of_sqlalchemy(url))
    for wrong in (engine, sessionmaker(engine), connections):
        with transaction(wrong), pytest.raises(ConfigError, match="give a connection of psycopg 3"):
            add.sync.enqueue(1)
    engine.dispose()
