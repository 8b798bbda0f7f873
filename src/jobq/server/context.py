"""What each service of a server gets: its store, its tasks, and how its calls end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, NamedTuple, Protocol

import grpc
import grpc.aio

from jobq.access.caller_errors import CallerErrors
from jobq.access.guarded.store import GuardedStore
from jobq.access.principal import ANYONE, Principal
from jobq.access.quotas import TenantRules
from jobq.client.deadlines import Deadline, Deadlines
from jobq.errors import QueueClosed
from jobq.server.config import ServerSettings
from jobq.server.tls import Clients
from jobq.server.tokens import UnknownKey
from jobq.stores.base import Clock, Store

# Tasks that a service starts and does not wait for.

log = logging.getLogger("jobq.server")


class Tasks:
    """Keeps tasks alive until they end, and logs what they raise."""

    def __init__(self, what: str) -> None:
        """`what` names the service in the log."""
        self._what = what
        self.running: set[asyncio.Task[None]] = set()
        """Tasks that have not ended."""

    def spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a task."""
        task = asyncio.create_task(work)
        self.running.add(task)
        task.add_done_callback(self._over)
        return task

    def _over(self, task: asyncio.Task[None]) -> None:
        self.running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of %s failed", self._what, exc_info=error)


# Ends the calls of a service that would stay open, when the server stops.


class Stopping:
    """Whether the server stops. All waits of a service know it."""

    def __init__(self) -> None:
        self._stopped = False
        self._bells: set[asyncio.Event] = set()
        self._deadlines = Deadlines()

    def deadline(self, ms: int | None) -> Deadline:
        """A deadline of a wait in the running event loop. It ends when the server stops."""
        deadline = self._deadlines.new(ms)
        if self._stopped:
            deadline.close()
        return deadline

    @contextlib.contextmanager
    def wakes(self, bell: asyncio.Event) -> Iterator[None]:
        """Inside the context, the end of the server rings this bell."""
        self._bells.add(bell)
        try:
            if self._stopped:
                bell.set()
            yield
        finally:
            self._bells.discard(bell)

    def check(self) -> None:
        """QueueClosed if the server stops."""
        if self._stopped:
            raise QueueClosed("the server stops: continue at another one")

    def stop(self) -> None:
        """End all waits. Call this in their event loop."""
        self._stopped = True
        for bell in self._bells:
            bell.set()
        self._deadlines.close(asyncio.get_running_loop())


class Authenticator(Protocol):
    """Finds out who sends a token."""

    def principal(self, token: str | None) -> Principal:
        """Who sends this token. Unauthenticated says what is wrong with it."""
        ...

    async def look_for_key(self) -> bool:
        """Look for new keys, because a token has an unknown one. True if there are any."""
        ...


class NoTokens:
    """The authenticator of a server that checks no tokens: every caller may do everything."""

    def principal(self, token: str | None) -> Principal:
        """Anyone."""
        return ANYONE

    async def look_for_key(self) -> bool:
        """There are no keys."""
        return False


class Proof(NamedTuple):
    """What a caller proves itself with."""

    token: str | None = None
    certificate: bytes | None = None
    """The client's certificate in PEM, if it counts for this call."""


class ServerContext:
    """The store, the settings, who is who, and a clock. One for all services of a server.

    With `clients`, a call without a token is made by the owner of its certificate. With `clients`
    and without an `authenticator`, tokens mean nothing.
    """

    def __init__(
        self,
        store: Store,
        settings: ServerSettings,
        *,
        authenticator: Authenticator | None = None,
        clients: Clients | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.store = store
        self.settings = settings
        self.clock: Callable[[], int] = clock or _now_ms
        if authenticator is None and clients is None:
            authenticator = NoTokens()
        self._authenticator = authenticator
        self._clients = clients
        self._guarded: dict[Principal, GuardedStore] = {}
        self.error_for_caller = CallerErrors(store.url)
        """What callers are told of errors."""
        self.on_call: Callable[[str, grpc.StatusCode, float], None] | None = None
        """Is told of every call that ended: its method, its status and its seconds."""
        self.guard: Callable[[Store, Principal, TenantRules], GuardedStore] = GuardedStore
        """Makes the store of a principal. Metrics set one that counts."""

    @property
    def authenticator(self) -> Authenticator | None:
        """Who sends which token. None: only certificates count."""
        return self._authenticator

    def proof(self, context: grpc.aio.ServicerContext[Any, Any]) -> Proof:
        """What the caller proves itself with: the metadata `authorization: Bearer …`, or its
        certificate."""
        token = None if self._authenticator is None else bearer(context)
        if token is not None or self._clients is None:
            return Proof(token)
        found = context.auth_context().get("x509_pem_cert") or ()
        return Proof(None, next(iter(found), None))

    async def guarded(self, proof: Proof) -> GuardedStore:
        """The store as the caller may use it.

        Unauthenticated if the proof is missing, wrong or expired. If the key of a token is unknown,
        the server looks for new keys first.
        """
        try:
            return self.guarded_by(proof)
        except UnknownKey:
            if self._authenticator is None or not await self._authenticator.look_for_key():
                raise
            return self.guarded_by(proof)

    def guarded_by(self, proof: Proof) -> GuardedStore:
        """The store as a caller with this proof may use it, with the keys that are known."""
        principal = self._principal(proof)
        found = self._guarded.get(principal)
        if found is None:
            if len(self._guarded) >= _MAX_GUARDED:
                self._guarded.clear()
            found = self.guard(self.store, principal, self.settings.tenants)
            self._guarded[principal] = found
        return found

    def _principal(self, proof: Proof) -> Principal:
        by_certificate = self._authenticator is None or proof.token is None
        if self._clients is not None and by_certificate:
            return self._clients.principal(proof.certificate)
        assert self._authenticator is not None  # without clients there is one
        return self._authenticator.principal(proof.token)


_MAX_GUARDED = 10_000
"""Principals that are remembered. A guarded store is cheap to make again."""


def bearer(context: grpc.aio.ServicerContext[Any, Any]) -> str | None:
    """The token in the metadata of a call. None if there is none."""
    for key, value in context.invocation_metadata() or ():
        if key == "authorization":
            text = value.decode("latin-1") if isinstance(value, bytes) else value
            scheme, _, token = text.partition(" ")
            return token.strip() if scheme.lower() == "bearer" else ""
    return None


def _now_ms() -> int:
    return int(time.time() * 1000)
