"""The store of a jq-server: every call of the Store contract is sent to the server.

What an acknowledged call survives is what the store behind the server promises.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Self

import msgspec

from jobq.core.records.event_log import offsets
from jobq.core.records.jobs import (
    JobKey,
    JobRecord,
    JobSpec,
    PutResult,
    QueueName,
    Signal,
    Topic,
)
from jobq.core.rules.new_jobs import (
    Checked,
    check_commands,
    check_queue,
    check_restored,
    check_schedule,
    check_specs,
)
from jobq.errors import InvalidJob, JobqError
from jobq.rpc import contract
from jobq.rpc.frames import encode
from jobq.stores.base import Clock
from jobq.stores.remote.address import parse
from jobq.stores.remote.connection import Connection, Subscription
from jobq.stores.remote.stream import version_of_server

_FLOW_TIMEOUT_S = 60.0
"""Seconds for a put of a flow: the last one of a large flow submits all its jobs."""

_POSITIONS = {"read_events": ("after", "until"), "ack_events": ("position",)}
"""Arguments that are positions in an event log."""


def _check_commands(arguments: Any) -> None:
    arguments.commands = check_commands(arguments.commands)


def _check_schedule(arguments: Any) -> None:
    arguments.spec = check_schedule(arguments.spec, arguments.next_ms)


def _check_records(arguments: Any) -> None:
    arguments.records = [record for record, _ in check_restored(arguments.records)]


_CHECKS: dict[str, Callable[[Any], None]] = {
    "alter": _check_commands,
    "put_schedule": _check_schedule,
    "restore": _check_records,
}
"""The checks of arguments that become jobs. The server makes them too."""


class RemoteStore:
    """See `jobq.stores.base.Store`.

    The calls are made from the contract (`rpc.contract`), so they are attributes and not methods.
    Those below are the ones that are not simply sent.
    """

    lanes = 2  # the server works on one exchange while the worker runs jobs of the other

    def __init__(self, url: str, clock: Clock | None = None) -> None:
        address = parse(url)
        self.url = address.shown
        self._address = address
        self._timeout = address.timeout
        self._connection = Connection(address, clock)
        for name, method in contract.METHODS.items():
            if not hasattr(self, name):
                setattr(self, name, self._caller(method))

    @property
    def tenant(self) -> str | None:
        """The only tenant that the server lets this client use, once connected. None: every one."""
        return self._connection.tenant

    def _caller(self, method: contract.Method) -> Callable[..., Awaitable[Any]]:
        positions, check = _POSITIONS.get(method.name, ()), _CHECKS.get(method.name)

        async def call(*args: Any, **kwargs: Any) -> Any:
            arguments = method.arguments(*args, **kwargs)
            if check is not None:
                check(arguments)
            for name in positions:
                # Any text is sent to the server, but not every position is text (surrogates).
                if (position := getattr(arguments, name)) is not None:
                    offsets(position, position.count(",") + 1)
            return await self._connection.call(method, _encoded(arguments))

        call.__name__ = call.__qualname__ = method.name
        return call

    async def server_version(self) -> str:
        """The version of jobq that the server runs. StoreUnavailable if no server responds."""
        return await asyncio.to_thread(version_of_server, self._address)

    # ── calls with something of their own ──

    async def put(
        self, specs: Sequence[JobSpec], *, flow: str | None = None, last: bool = True
    ) -> list[PutResult]:
        """See HotStore."""
        try:
            specs = check_specs(specs)
        except JobqError:
            if flow is not None and specs:
                await self._discard(check_queue(specs[0].queue), flow)
            raise
        if isinstance(specs, _Prepared) and flow is None and last:
            arguments = specs.arguments
        else:
            arguments = _encoded(_PUT.arguments(list(specs), flow, last))
        timeout = None if flow is None else max(self._timeout, _FLOW_TIMEOUT_S)
        found: list[PutResult] = await self._connection.call(_PUT, arguments, timeout)
        return found

    async def _discard(self, queue: QueueName, flow: str) -> None:
        """Discard what is staged of a flow: the server refuses a job without an id, and with it the
        flow."""
        refused = JobSpec(queue=queue, id="", name="", payload=b"")
        with suppress(JobqError):
            await self._connection.call(_PUT, _encoded(_PUT.arguments([refused], flow, True)))

    async def sleep(
        self, queues: Sequence[QueueName], *, worker: str, slots: int, timeout_ms: int
    ) -> bool:
        """See SignalStore."""
        arguments = _encoded(_SLEEP.arguments(list(queues), worker, slots, timeout_ms))
        timeout = self._timeout + timeout_ms / 1000
        return bool(await self._connection.call(_SLEEP, arguments, timeout))

    @asynccontextmanager
    async def listen(self, topics: Sequence[Topic]) -> AsyncIterator[AsyncIterator[Signal]]:
        """See SignalStore. After a lost stream, each job and log topic gets a signal, because one
        may have been lost."""
        signals: asyncio.Queue[Signal | JobqError] = asyncio.Queue()

        def renewed() -> None:
            for topic in topics:
                if topic.kind != "cancel" and topic.queue is not None:
                    signals.put_nowait(Signal(topic.kind, topic.queue, topic.name))

        subscription = Subscription(
            "listen",
            contract.raw(list(topics)),
            on_item=lambda item: signals.put_nowait(contract.read_signal(item)),
            on_error=signals.put_nowait,
            on_renewed=renewed,
        )
        await self._connection.subscribe(subscription, confirmed=True)
        try:
            yield _items(signals)
        finally:
            self._connection.unsubscribe(subscription)

    # ── Pipelined ──

    def prepare(self, specs: Sequence[JobSpec]) -> Sequence[JobSpec]:
        """See Pipelined."""
        return _Prepared(check_specs(specs))

    @asynccontextmanager
    async def expect(self, job: JobKey) -> AsyncIterator[AsyncIterator[JobRecord | None]]:
        """See Pipelined. The server expects the job before it carries out the put, because it
        reads frames in order."""
        ends: asyncio.Queue[JobRecord | JobqError | None] = asyncio.Queue()
        subscription = Subscription(
            "expect",
            contract.raw(job),
            on_item=lambda item: ends.put_nowait(contract.read_end(item)),
            on_error=ends.put_nowait,
            on_renewed=lambda: ends.put_nowait(None),  # the caller reads the job again
        )
        await self._connection.subscribe(subscription, confirmed=False)
        try:
            yield _items(ends)
        finally:
            self._connection.unsubscribe(subscription)

    # ── lifecycle ──

    async def migrate(self) -> None:
        """Connect. The server has brought its store up to date."""
        await self._connection.open()

    async def aclose(self) -> None:
        """See LifecycleStore."""
        await self._connection.aclose()

    async def __aenter__(self) -> Self:
        await self.migrate()
        return self

    async def __aexit__(
        self, t: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        await asyncio.shield(self.aclose())


_PUT, _SLEEP = contract.METHODS["put"], contract.METHODS["sleep"]


class _Prepared(Checked):
    """Specs, and the arguments of their put."""

    def __init__(self, specs: Sequence[JobSpec]) -> None:
        super().__init__(specs)
        self.arguments = _encoded(_PUT.arguments(list(specs)))


def _encoded(arguments: object) -> msgspec.Raw:
    try:
        return msgspec.Raw(encode(arguments))
    except (UnicodeEncodeError, OverflowError, TypeError) as error:
        raise InvalidJob(f"this cannot be sent to a server: {error}") from error


async def _items(queue: asyncio.Queue[Any]) -> AsyncIterator[Any]:
    while True:
        item = await queue.get()
        if isinstance(item, JobqError):
            raise item
        yield item
