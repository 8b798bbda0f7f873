"""Database connections around jobs, as Django treats them around requests.

Before a job, connections that are broken or too old are closed. After it, those that have reached
CONN_MAX_AGE are: with Django's default of 0, all of them. A connection that is inside `atomic()`
before the job starts is left alone, so a job that runs inside a TestCase keeps its transaction.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import connections, transaction

from jobq.api.task_handler import runs_async
from jobq.client.transaction import AfterCommit, Surrounding, Transaction, current
from jobq.django.config import Enqueue

log = logging.getLogger("jobq.django")


def with_connections(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The handler, with its thread's connections checked before a run and closed after it."""
    return _of_coroutine(fn) if runs_async(fn) else _of_function(fn)


def _of_function(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def run(*args: Any, **kwargs: Any) -> Any:
        kept = _begin()
        try:
            return fn(*args, **kwargs)
        finally:
            _close_safely(kept)

    return run


def _of_coroutine(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    async def run(*args: Any, **kwargs: Any) -> Any:
        # As for a request under ASGI: the run has a thread of its own for Django's database calls,
        # which starts with the first call. So another run cannot close its connections.
        async with ThreadSensitiveContext() as context:
            try:
                return await fn(*args, **kwargs)
            finally:
                threads = SyncToAsync.context_to_thread_executor
                if context in threads:
                    try:
                        await asyncio.shield(sync_to_async(_close_all)())
                    finally:
                        # Not waited for: a query that goes on must not block the event loop.
                        threads.pop(context).shutdown(wait=False)

    return run


def _begin() -> frozenset[str]:
    """Prepare this thread's connections for a run. Returns the aliases of those to leave alone."""
    opened = connections.all(initialized_only=True)
    kept = frozenset(connection.alias for connection in opened if connection.in_atomic_block)
    _close_old(opened, kept)
    for connection in opened:
        if connection.alias not in kept:  # a TestCase may be counting its queries
            connection.queries_log.clear()  # with DEBUG, Django remembers every query of a thread
    return kept


def _close_old(opened: Iterable[Any], kept: frozenset[str]) -> None:
    for connection in opened:
        if connection.alias in kept:
            continue
        if connection.in_atomic_block:  # the run has left its transaction open
            connection.close()
            del connections[connection.alias]  # inside atomic(), it cannot be opened again
        else:
            connection.close_if_unusable_or_obsolete()


def _close_safely(kept: frozenset[str]) -> None:
    """Close after a run. The job has its result, which an error here must not replace."""
    try:
        _close_old(connections.all(initialized_only=True), kept)
    except Exception:
        log.exception("a database connection could not be closed after a job")


def _close_all() -> None:
    """Close every connection of a thread that is about to end."""
    try:
        connections.close_all()
    except Exception:
        log.exception("a database connection could not be closed after a job")


# The transaction of Django that a blocking call is in.


def surrounding(mode: Enqueue, alias: str, url: str) -> Surrounding | None:
    """The transaction that a call of this thread is in, as far as it matters for jobs.

    None if there is none, or if jobs are stored at once in any case."""
    if (explicit := current()) is not None:
        return explicit
    if mode == "at_once" or not in_atomic(alias):
        return None
    if mode == "in_transaction" and url.startswith(("postgresql:", "postgres:")):
        return Transaction.of_one_call(connections[alias])
    return AfterCommit(partial(transaction.on_commit, using=alias))


def in_atomic(alias: str) -> bool:
    """Whether this thread is inside `atomic()`. The transaction around a TestCase does not count,
    because it never commits."""
    connection: Any = connections[alias]
    return connection.in_atomic_block and not all(
        block._from_testcase for block in connection.atomic_blocks
    )
