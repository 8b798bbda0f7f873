"""How jq-ctl's commands reach a store. This is the only place in jq-ctl that opens one.

A command gets a `Backend` and asks it for the store, for a `Queue` of the public API, or for the
records of jobs by id. Every URL that `open_store` accepts works here.
"""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec

from jobq.api.queue import Queue
from jobq.cli.address import WrongAddress
from jobq.client.connection import release_handle, shared_handle
from jobq.client.deadlines import patient, within
from jobq.client.tenants import check_own, granted_tenant, learn_tenant, tenant_for
from jobq.core.records.commands import Altered, AnyCommand
from jobq.core.records.jobs import JobRecord, QueueName
from jobq.core.records.queues import QueueRecord
from jobq.core.values import checks
from jobq.core.values.printable import redacted_url
from jobq.errors import ConfigError, JobNotFound
from jobq.operations import listing
from jobq.stores import open_store
from jobq.stores.base import Store

T = TypeVar("T")


class Backend:
    """One tenant's queues in one store. `timeout` limits each wait for a reply, in seconds."""

    store: Store
    """Each of its calls may take `timeout` seconds."""
    shared_handle: Store
    """The same without a limit."""

    def __init__(self, url: str, *, tenant: str | None = None, timeout: float = 10.0) -> None:
        self.url = url
        self.shown = redacted_url(url)  # the URL without its password, for messages
        self.named = tenant_for(url, tenant or None)
        """The tenant, unless only a jq-server knows it."""
        self.timeout = timeout
        self.actor = _user()
        """Recorded in the events of every command: `user@host`."""
        self._stack = AsyncExitStack()

    @asynccontextmanager
    async def opened(self, *, create: bool = False) -> AsyncIterator[Backend]:
        """Connect to the store, for as long as the context lasts."""
        if not create:
            _must_exist(self.url)
        async with self._stack:
            store = await self.within(_connected(self.url))
            self._stack.push_async_callback(release_handle, store)
            learn_tenant(self.url, store)
            check_own(store, self.tenant)
            self.handle = store
            self.store = patient(store, self.timeout, self._late)
            yield self

    @property
    def tenant(self) -> str:
        """The tenant: that of the command line, of the token, or of the client's certificate."""
        return granted_tenant(self.url) if self.named is None else self.named

    @property
    def _late(self) -> str:
        return f"{self.shown} did not reply within {self.timeout:g} s; use --timeout to wait longer"

    def unopened(self) -> Store:
        """The store, not connected: to migrate it, or to see what a migration would do."""
        _must_exist(self.url)
        return open_store(self.url)

    async def within(self, answer: Awaitable[T]) -> T:
        """Wait for the store's reply. Raises StoreUnavailable after `timeout` seconds."""
        return await within(answer, self.timeout, self._late)

    async def queue(self, name: str, **declared: Any) -> Queue:
        """Open a queue of the public API. It stays open until the command ends."""
        queue = Queue(name, self.url, tenant=self.tenant, **declared).as_actor(self.actor)
        return await self.within(self._stack.enter_async_context(queue))

    async def alter(self, commands: Iterable[AnyCommand]) -> list[Altered]:
        """Apply commands to single jobs. Their events name the user as the actor."""
        return await self.store.alter(
            [msgspec.structs.replace(each, actor=self.actor) for each in commands]
        )

    def name(self, queue: str) -> QueueName:
        """The queue's name together with the tenant."""
        return QueueName(self.tenant, queue)

    async def queues(self) -> list[QueueRecord]:
        """The tenant's queues, sorted by name."""
        return await listing.queues(self.store, self.tenant)

    async def known(self, names: Sequence[str]) -> list[QueueRecord]:
        """The queues with these names, or all. Raises ConfigError for one that does not exist."""
        there = {record.queue.queue: record for record in await self.queues()}
        for name in names:
            if name not in there:
                raise ConfigError(f"no queue {name!r} in {self.shown}{_have(there)}")
        return [there[name] for name in names] if names else list(there.values())

    async def locate(self, ids: Sequence[str], queue: str | None = None) -> list[JobRecord]:
        """Find jobs by id, in `queue` or in any queue of the tenant, in the order of `ids`.

        Raises JobNotFound for ids that are in none, ConfigError for an id that is in several."""
        names = (
            [self.name(queue)]
            if queue is not None
            else [record.queue for record in await self.queues()]
        )
        found = await listing.located(self.store, names, ids)
        if missing := [id for id, records in found.items() if not records]:
            where = f"queue {queue!r}" if queue is not None else f"any queue of {self.shown}"
            raise JobNotFound(
                f"no job {', '.join(missing)} in {where}: "
                "the id is wrong, or retention has removed the job"
            )
        for id, records in found.items():
            if len(records) > 1:
                places = ", ".join(record.queue.queue for record in records)
                raise ConfigError(
                    f"job {id} is in several queues ({places}): choose one with --queue"
                )
        return [found[id][0] for id in ids]


def _user() -> str:
    """`user@host`, or `uid N@host` where the user has no name, as in some containers."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError):
        user = f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"
    return checks.as_actor(f"{user}@{socket.gethostname()}")


async def _connected(url: str) -> Store:
    try:
        return await shared_handle(url)
    except ConfigError as e:
        raise WrongAddress(str(e)) from e


def _have(names: dict[str, QueueRecord]) -> str:
    return f": its queues are {', '.join(names)}" if names else ": it has no queues yet"


def _must_exist(url: str) -> None:
    """Raise WrongAddress if a SQLite file does not exist.

    It is most likely a typo or the wrong directory, and opening it would create an empty store."""
    parts = urlsplit(url)
    if parts.scheme != "sqlite":
        return
    path = Path(parts.path.removeprefix("/"))
    if not path.exists():
        raise WrongAddress(
            f"no store at {redacted_url(url)}: the file {path.absolute()} does not exist. "
            "Set --url or JQ_URL, or --server-addr for a jq-server"
        )
