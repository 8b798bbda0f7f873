"""The transaction of Django that a blocking call is in."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.db import connections, transaction

from jobq.client.transaction import AfterCommit, Surrounding, Transaction, current
from jobq.django.config import Enqueue


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
