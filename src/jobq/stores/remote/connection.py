"""The connection of a handle: one stream at a time, replaced when it is lost or deaf.

A call that is in flight when its stream is lost raises StoreUnavailable, because it may have been
applied. A read is sent again on the next stream instead. Calls that begin while there is no stream
wait for one. Every wait ends with the timeout of the URL.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import random
import time
from collections.abc import Callable
from typing import Any

import msgspec

from jobq.errors import AccessDenied, ConfigError, JobqError, PayloadTooLarge, StoreUnavailable
from jobq.rpc import contract, frames
from jobq.rpc.frames import (
    Call,
    Cancel,
    Frame,
    Hello,
    Item,
    Refusal,
    Reply,
    Time,
    Welcome,
    error_of,
)
from jobq.stores.base import Clock
from jobq.stores.base.urls import token
from jobq.stores.remote.address import Address
from jobq.stores.remote.stream import Stream

log = logging.getLogger("jobq.remote")

_FIRST_DELAY_S, _MAX_DELAY_S = 0.05, 5.0
"""Before the second and the last tries to connect again. Up to half of a delay is random."""


class Subscription:
    """A `listen` or an `expect`, which lives longer than a stream."""

    __slots__ = ("arguments", "method", "number", "on_error", "on_item", "on_renewed")

    def __init__(
        self,
        method: str,
        arguments: msgspec.Raw,
        *,
        on_item: Callable[[msgspec.Raw], None],
        on_error: Callable[[JobqError], None],
        on_renewed: Callable[[], None],
    ) -> None:
        """`on_renewed` is called after a lost stream: items from in between are lost."""
        self.method, self.arguments = method, arguments
        self.on_item, self.on_error, self.on_renewed = on_item, on_error, on_renewed
        self.number = 0


class Connection:
    """Sends calls to a jq-server and returns its replies."""

    def __init__(self, address: Address, clock: Clock | None) -> None:
        self.tenant: str | None = None
        """The tenant of the token or the certificate, once connected. None: every tenant."""
        self._address = address
        self._clock = clock
        self._time: int | None = None  # the last time that the server was told
        self._pid = os.getpid()
        self._numbers = itertools.count(1)
        self._turn = random.randrange(len(address.targets))  # a fleet spreads over the servers
        self._stream: Stream | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._subscriptions: dict[int, Subscription] = {}
        self._ready: asyncio.Future[None] | None = None  # calls that wait for a stream
        self._deaf_s = 0.0
        self._watch: asyncio.TimerHandle | None = None
        self._restoring: asyncio.Task[None] | None = None
        self._closed = False

    # ── opening and closing ──

    async def open(self) -> None:
        """Connect. StoreUnavailable if no server of the list says Welcome in time."""
        if self._stream is None:
            self._check_process()
            self._closed = False
            await self._connect(self._address.timeout)

    async def aclose(self) -> None:
        """End the stream and every wait."""
        self._closed = True
        if self._restoring is not None:
            self._restoring.cancel()
            await asyncio.wait([self._restoring])
            self._restoring = None
        self._lose("the handle was closed")
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(StoreUnavailable(self._about("the handle was closed")))
            self._ready.exception()

    async def _connect(self, deadline: float) -> None:
        """Try each server of the list once, beginning after the one that was used last.

        `deadline` is how many seconds each of them has to reply."""
        reasons: list[str] = []
        targets = self._address.targets
        for _ in targets:
            target = targets[self._turn % len(targets)]
            self._turn += 1
            try:
                await self._say_hello(target, deadline)
                return
            except StoreUnavailable as error:
                reasons.append(str(error))
        raise StoreUnavailable(self._about("; ".join(dict.fromkeys(reasons))))

    async def _say_hello(self, target: str, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        greeting: asyncio.Future[Welcome] = loop.create_future()

        def on_frames(found: list[Frame]) -> None:
            for frame in found:
                if isinstance(frame, Welcome) and not greeting.done():
                    greeting.set_result(frame)
                elif isinstance(frame, Refusal) and not frame.number and not greeting.done():
                    greeting.set_exception(error_of(frame))
                else:
                    self._take(frame)

        def on_end(why: str) -> None:
            if not greeting.done():
                greeting.set_exception(StoreUnavailable(why))
            elif self._stream is stream:
                self._lose(why)

        stream = Stream(self._address, target, token(), on_frames=on_frames, on_end=on_end)
        try:
            hello = Hello(frames.VERSION, None, self._clock is not None)
            stream.send(frames.pack([hello]))
            async with asyncio.timeout(deadline):
                welcome = await greeting
        except TimeoutError:
            stream.close()
            name = target.removeprefix("dns:///")
            raise StoreUnavailable(f"no reply from {name} within {deadline:.3g} s") from None
        except BaseException:
            stream.close()
            raise
        self.tenant = welcome.tenant
        self._begin(stream, welcome)

    def _begin(self, stream: Stream, welcome: Welcome) -> None:
        self._stream = stream
        self._time = None
        stream.beat_s = welcome.beat_ms / 1000
        self._deaf_s = welcome.deaf_ms / 1000
        self._watch_stream(stream)
        for subscription in list(self._subscriptions.values()):
            self._renew(subscription)
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(None)
        self._ready = None

    def _watch_stream(self, stream: Stream) -> None:
        """Replace a stream on which the server has been silent for too long."""
        if self._stream is not stream:
            return
        silent = time.monotonic() - stream.heard
        if silent > self._deaf_s:
            self._lose(f"the server was silent for {silent:.0f} s")
            return
        self._watch = asyncio.get_running_loop().call_later(
            max(0.05, self._deaf_s - silent), self._watch_stream, stream
        )

    def _lose(self, why: str) -> None:
        """The stream is over: fail the calls in flight, and connect again in the background."""
        stream, self._stream = self._stream, None
        if stream is None:
            return
        stream.close()
        if self._watch is not None:
            self._watch.cancel()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(StoreUnavailable(self._about(why)))
                future.exception()
        if not self._closed and self._restoring is None:
            log.info("%s: %s; connecting again", self._address.shown, why)
            self._restoring = asyncio.get_running_loop().create_task(
                self._restore(), name="jobq remote connects again"
            )

    async def _restore(self) -> None:
        """Connect again, however long it takes."""
        delay = _FIRST_DELAY_S
        while True:
            try:
                # Half of a call's time, so that a call that waits for a stream outlives a bad one.
                await self._connect(self._address.timeout / 2)
                break
            except AccessDenied as error:
                # A token or a certificate may be replaced. Calls must know why they wait.
                self._fail_waiting(error)
            except ConfigError as error:
                # A server of another version. It refuses the connection, and no call.
                self._fail_waiting(StoreUnavailable(self._about(str(error))))
            except Exception as error:
                log.debug("%s: %s", self._address.shown, error)
            await asyncio.sleep(delay * random.uniform(0.5, 1.0))
            delay = min(_MAX_DELAY_S, delay * 2)
        self._restoring = None

    def _fail_waiting(self, error: JobqError) -> None:
        ready, self._ready = self._ready, None
        if ready is not None and not ready.done():
            ready.set_exception(error)
            ready.exception()

    # ── calls ──

    async def call(
        self, method: contract.Method, arguments: msgspec.Raw, timeout: float | None = None
    ) -> Any:
        """Make a call and return its decoded reply."""
        loop = asyncio.get_running_loop()
        self._check_home(loop)
        if not frames.fits(arguments):
            raise PayloadTooLarge(
                f"the call {method.name} has {len(arguments):,} bytes, and a jq-server accepts "
                f"{frames.MAX_PACKET:,} at once: send fewer jobs per call"
            )
        until = loop.time() + (timeout or self._address.timeout)
        while True:
            stream = self._stream or await self._connected(until)
            try:
                reply = await self._ask(stream, method.name, arguments, until)
            except StoreUnavailable:
                again = method.name in contract.READS and self._stream is not stream
                if again and not self._closed and loop.time() < until:
                    continue
                raise
            return method.read(reply)

    async def _ask(
        self, stream: Stream, method: str, arguments: msgspec.Raw, until: float
    ) -> msgspec.Raw:
        loop = asyncio.get_running_loop()
        number = next(self._numbers)
        future: asyncio.Future[msgspec.Raw] = loop.create_future()
        self._waiting[number] = future
        timer = loop.call_at(until, self._give_up, number, stream, time.monotonic())
        self._send(stream, Call(number, method, arguments))
        try:
            return await future
        except asyncio.CancelledError:
            if self._stream is stream:
                stream.send(frames.pack([Cancel(number)]))
            raise
        finally:
            timer.cancel()
            self._waiting.pop(number, None)

    def _give_up(self, number: int, stream: Stream, since: float) -> None:
        future = self._waiting.pop(number, None)
        if future is None or future.done():
            return
        future.set_exception(StoreUnavailable(self._about("no reply in time")))
        if stream.heard < since and self._stream is stream:
            self._lose("no frame arrived while a call waited for its reply")

    def _send(self, stream: Stream, call: Call) -> None:
        if self._clock is not None and (now := self._clock()) != self._time:
            self._time = now
            stream.send(frames.pack([Time(now), call]))
        else:
            stream.send(frames.pack([call]))

    async def _connected(self, until: float) -> Stream:
        """The stream, as soon as there is one."""
        self._check_process()
        loop = asyncio.get_running_loop()
        while self._stream is None:
            if self._closed or self._restoring is None:
                raise StoreUnavailable(self._about("the handle is not open"))
            if self._ready is None:
                self._ready = loop.create_future()
            try:
                async with asyncio.timeout_at(until):
                    await asyncio.shield(self._ready)
            except TimeoutError:
                raise StoreUnavailable(
                    self._about("the server is unavailable, and the client tries to reach it")
                ) from None
        return self._stream

    # ── subscriptions ──

    async def subscribe(self, subscription: Subscription, *, confirmed: bool) -> None:
        """Send a subscription. With `confirmed`, wait until the server has it."""
        loop = asyncio.get_running_loop()
        self._check_home(loop)
        until = loop.time() + self._address.timeout
        while True:
            stream = self._stream or await self._connected(until)
            subscription.number = next(self._numbers)
            self._subscriptions[subscription.number] = subscription
            call = Call(subscription.number, subscription.method, subscription.arguments)
            if not confirmed:
                self._send(stream, call)
                return
            future: asyncio.Future[Any] = loop.create_future()
            self._waiting[subscription.number] = future
            timer = loop.call_at(
                until, self._give_up, subscription.number, stream, time.monotonic()
            )
            self._send(stream, call)
            try:
                await future
                return
            except StoreUnavailable:
                self._subscriptions.pop(subscription.number, None)
                if self._stream is stream or self._closed or loop.time() >= until:
                    raise
            except BaseException:
                self.unsubscribe(subscription)
                raise
            finally:
                timer.cancel()
                self._waiting.pop(subscription.number, None)

    def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription."""
        self._subscriptions.pop(subscription.number, None)
        if self._stream is not None:
            self._stream.send(frames.pack([Cancel(subscription.number)]))

    def _renew(self, subscription: Subscription) -> None:
        """Subscribe again on a new stream. Signals from in between are lost."""
        assert self._stream is not None
        self._subscriptions.pop(subscription.number, None)
        subscription.number = next(self._numbers)
        self._subscriptions[subscription.number] = subscription
        self._send(
            self._stream,
            Call(subscription.number, subscription.method, subscription.arguments),
        )
        subscription.on_renewed()

    # ── frames ──

    def _take(self, frame: Frame) -> None:
        if isinstance(frame, Reply):
            future = self._waiting.get(frame.number)
            if future is not None and not future.done():
                future.set_result(frame.result)
        elif isinstance(frame, Refusal):
            if frame.number == 0:
                self._lose(frame.message)
                return
            future = self._waiting.get(frame.number)
            if future is not None and not future.done():
                future.set_exception(error_of(frame))
            elif (refused := self._subscriptions.pop(frame.number, None)) is not None:
                refused.on_error(error_of(frame))
        elif isinstance(frame, Item):
            subscription = self._subscriptions.get(frame.number)
            if subscription is not None:
                subscription.on_item(frame.value)

    def _check_home(self, loop: asyncio.AbstractEventLoop) -> None:
        """ConfigError if the replies to a call would arrive elsewhere."""
        self._check_process()
        if self._stream is not None and self._stream.loop is not loop:
            raise ConfigError(
                "this handle was opened in another event loop, and replies arrive there: open the "
                "queue in the event loop that uses it"
            )

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ConfigError(
                "this handle was opened before the process forked, and its connection belongs to "
                "the parent: open the queue in the child"
            )

    def _about(self, why: str) -> str:
        return f"{self._address.shown}: {why}"
