"""Gives a store the layout of this release: a new store, or one that an older release wrote.

The data of jobq 0.1 needs no change: its records and log entries are read as they are.
"""

from __future__ import annotations

import msgspec

from jobq.core.rules.layout import refuse_running
from jobq.errors import ConfigError
from jobq.stores.valkey.calls import Calls
from jobq.stores.valkey.connection import ServerError
from jobq.stores.valkey.keys import Space
from jobq.stores.valkey.layout import LATEST, OLDEST, STAMP, parse_layout
from jobq.stores.valkey.library import VERSION
from jobq.stores.valkey.servers import Servers


class Migration:
    """Writes the key that carries the layout, once older releases can do no harm."""

    def __init__(self, url: str, servers: Servers, calls: Calls, space: Space) -> None:
        self._url = url
        self._servers = servers
        self._calls = calls
        self._space = space

    async def run(self) -> None:
        """Write the layout, unless the store has it or a newer one that this release works with."""
        key = self._space.layout
        stored = await self._servers.command(key, "GET", key)
        if stored is None:
            await self._take_over()
            await self._servers.command(key, "SET", key, STAMP, "NX")
            return
        found = parse_layout(self._url, stored).layout
        if found >= LATEST:
            return
        if found < OLDEST:
            refuse_running(self._url, found, LATEST, [name for name, _ in await self._workers()])
            await self._servers.command(key, "SET", key, STAMP)
            await self._delete_older_libraries()
        else:
            await self._servers.command(key, "SET", key, STAMP)

    async def _take_over(self) -> None:
        """A store without a layout is new, was written by jobq 0.1, or was flushed.

        Workers of later releases have an incarnation. In a flushed store they may be running.
        """
        if await self._servers.command(self._space.queues, "SCARD", self._space.queues):
            workers = await self._workers()
            old = [name for name, incarnation in workers if not incarnation]
            refuse_running(self._url, 1, LATEST, old)

    async def _workers(self) -> list[tuple[str, str]]:
        """Name and incarnation of the workers that are running."""
        packed = await self._calls.fcall("workers", self._space.workers, self._calls.now())
        records = [msgspec.json.decode(record) for record in packed]
        return [(record["name"], record.get("incarnation", "")) for record in records]

    async def _delete_older_libraries(self) -> None:
        """Stop processes of older releases that are not workers: their next call finds no function.

        They then look at the layout before they load their library again, and refuse the store.
        """
        for node in await self._servers.primaries():
            connection = await self._servers.connection(node)
            try:
                libraries = await connection.ask("FUNCTION", "LIST", "LIBRARYNAME", "jobq_v*")
                for fields in libraries:
                    name = dict(zip(fields[::2], fields[1::2], strict=True))[b"library_name"]
                    if name != VERSION.encode():
                        await connection.ask("FUNCTION", "DELETE", name)
            except ServerError as e:
                raise ConfigError(
                    f"{self._url} has been migrated to layout {LATEST}, but the function libraries "
                    f"of older releases could not be deleted ({e}): delete them with FUNCTION "
                    "DELETE, so that producers of an older jobq cannot write to the store"
                ) from e
