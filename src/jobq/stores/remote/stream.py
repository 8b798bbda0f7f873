"""One exchange stream over gRPC's blocking API, as an event loop sees it.

gRPC's asyncio API is faster, but it crashes a forked child of its process, and all event loops of a
process share its one socket (docs/decisions/0020-the-client-of-a-server.md). Here one thread of
gRPC sends and one of ours receives. Neither needs the event loop, so a handler that blocks the loop
does not make the stream look dead.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc

from jobq.errors import ConfigError, StoreUnavailable
from jobq.rpc import frames
from jobq.rpc.frames import Beat, Frame
from jobq.rpc.v1 import admin_pb2, admin_pb2_grpc
from jobq.stores.base.urls import token
from jobq.stores.remote.address import Address

_OPTIONS = (
    # Streams of a process must not share a connection: a busy one would delay a keeper's renewals.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)
_BEAT = frames.pack([Beat()])


class Stream:
    """A stream to one server. `on_frames` and `on_end` are called in the event loop."""

    def __init__(
        self,
        address: Address,
        target: str,
        token: str | None,
        *,
        on_frames: Callable[[list[Frame]], None],
        on_end: Callable[[str], None],
    ) -> None:
        self.heard = time.monotonic()
        """When the last message arrived. The receiving thread sets it."""
        self.beat_s: float | None = None
        """After this time without anything to send, a beat is sent. None: not before a Welcome."""
        self.loop = asyncio.get_running_loop()
        """Where `on_frames` and `on_end` are called."""
        self._on_frames, self._on_end = on_frames, on_end
        self._closed = False
        self._outgoing: queue.SimpleQueue[list[bytes] | None] = queue.SimpleQueue()
        self._channel = _channel(address, target)
        metadata = (("authorization", f"Bearer {token}"),) if token else ()
        exchange = self._channel.stream_stream(frames.METHOD, bytes, bytes)
        self._call = exchange(self._messages(), metadata=metadata, wait_for_ready=False)
        threading.Thread(target=self._receive, name="jobq grpc receiver", daemon=True).start()

    def send(self, messages: list[bytes]) -> None:
        """Send messages, after those sent before."""
        self._outgoing.put(messages)

    def close(self) -> None:
        """End the stream at once. The thread closes the connection."""
        self._closed = True
        self._outgoing.put(None)
        self._call.cancel()  # type: ignore[no-untyped-call]

    def _messages(self) -> Iterator[bytes]:
        """What gRPC's thread sends."""
        while True:
            try:
                messages = self._outgoing.get(timeout=self.beat_s or 1.0)
            except queue.Empty:
                messages = [] if self.beat_s is None else _BEAT
            if messages is None or self._closed:
                return
            yield from messages

    def _receive(self) -> None:
        unpacker = frames.Unpacker(frames.MAX_REPLIES)
        try:
            for message in self._call:
                self.heard = time.monotonic()
                found = unpacker.feed(message)
                if found:
                    self._at_home(self._on_frames, found)
            why = "the server ended the stream"
        except grpc.RpcError as error:
            why = _described(error)
        except Exception as error:  # bytes that are not frames
            why = f"this is not a jq-server, or one of another version: {error}"
        self._outgoing.put(None)
        self._at_home(self._on_end, why)
        self._channel.close()

    def _at_home(self, call: Callable[..., None], *args: object) -> None:
        try:
            self.loop.call_soon_threadsafe(call, *args)
        except RuntimeError:
            pass  # the event loop is closed: nobody waits any more


def version_of_server(address: Address) -> str:
    """Ask the first server that replies which version it runs. Blocks."""
    why = "no server in the address"
    found = token()
    metadata = (("authorization", f"Bearer {found}"),) if found else ()
    for target in address.targets:
        with _channel(address, target) as channel:
            try:
                reply = admin_pb2_grpc.AdminServiceStub(channel).GetVersion(
                    admin_pb2.GetVersionRequest(), metadata=metadata, timeout=address.timeout
                )
            except grpc.RpcError as error:
                why = _described(error)
            else:
                return reply.version
    raise StoreUnavailable(f"{address.shown}: {why}")


def _channel(address: Address, target: str) -> grpc.Channel:
    if not address.tls:
        return grpc.insecure_channel(target, options=_OPTIONS)
    credentials = grpc.ssl_channel_credentials(
        root_certificates=_read(address, "ca", address.ca),
        private_key=_read(address, "key", address.key),
        certificate_chain=_read(address, "cert", address.cert),
    )
    return grpc.secure_channel(target, credentials, options=_OPTIONS)


def _read(address: Address, option: str, path: str | None) -> bytes | None:
    """The file, read for each stream: certificates are replaced without a restart."""
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as e:
        raise ConfigError(f"{address.shown!r}: cannot read {option}={path}: {e}") from None


def _described(error: grpc.RpcError) -> str:
    code = error.code() if isinstance(error, grpc.Call) else None
    details = error.details() if isinstance(error, grpc.Call) else None
    if code is grpc.StatusCode.UNIMPLEMENTED:
        return "this server has no exchange stream: is it a jq-server?"
    return f"{details or error}" + (f" ({code.name})" if code is not None else "")
