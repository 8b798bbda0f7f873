"""Calls of library functions, with the clock of one handle. Error replies become exceptions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from jobq.core.records import refusals
from jobq.core.records.jobs import QueueName
from jobq.stores.base import Clock
from jobq.stores.valkey import keys
from jobq.stores.valkey.connection import Argument, Reply, ServerError
from jobq.stores.valkey.library import function
from jobq.stores.valkey.servers import Servers


class PartitionsChanged(Exception):
    """The queue has another number of partitions than this handle knew.

    Ask for it and try again.
    """


class Refused(Exception):
    """A function refused the call. The caller knows what the words of the reply mean."""

    def __init__(self, word: str, rest: list[str]) -> None:
        super().__init__(word, *rest)
        self.word, self.rest = word, rest


class Calls:
    """Calls functions where a key lives."""

    def __init__(self, servers: Servers, clock: Clock | None) -> None:
        self._servers = servers
        self._clock = clock

    def now(self) -> str | int:
        """The `now` argument of functions: the injected clock's time, or "" for the server's."""
        return "" if self._clock is None else self._clock()

    async def fcall(self, name: str, key: str, *args: Argument, confirmed: bool = False) -> Reply:
        """Call a function. `confirmed`: wait for the replicas that the URL asks for."""
        return await self.fcall_list(function(name), key, args, confirmed=confirmed)

    async def fcall_list(
        self, name: bytes, key: str, args: Sequence[Argument], *, confirmed: bool = False
    ) -> Reply:
        """The same with a packed name and a list of arguments, for the hot paths."""
        try:
            return await self._servers.fcall(name, key, args, confirmed=confirmed)
        except ServerError as e:
            _raise(e, keys.queue_of(key) if "{" in key and ":" in key else None)


def _raise(error: ServerError, queue: QueueName | None) -> NoReturn:
    """Raise what an error of the library means. Any other error is a bug and is raised as it is."""
    text = str(error)
    if not text.startswith("JOBQ "):
        raise error
    name = queue.queue if queue else "?"
    _, word, *rest = text.split(" ", 3)
    if word == "ACTIVE":
        raise refusals.has_active_jobs(name, int(rest[0]))
    if word == "DECLARE" and rest[0] == "partitions" and queue is not None:
        raise refusals.other_partitions(queue, int(rest[1]))
    if word == "PARTED":
        raise PartitionsChanged(name)
    raise Refused(word, rest)
