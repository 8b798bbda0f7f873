"""What each service of a server gets."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Protocol

import grpc
import grpc.aio

from jobq.server.guard import GuardedStore
from jobq.server.principal import ANYONE, Principal
from jobq.server.quotas import TenantRules
from jobq.server.settings import ServerSettings
from jobq.server.tokens import UnknownKey
from jobq.stores.base import Clock, Store


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


class ServerContext:
    """The store, the settings, who is who, and a clock. One for all services of a server."""

    def __init__(
        self,
        store: Store,
        settings: ServerSettings,
        *,
        authenticator: Authenticator | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.store = store
        self.settings = settings
        self.clock: Callable[[], int] = clock or _now_ms
        self._authenticator: Authenticator = authenticator or NoTokens()
        self._guarded: dict[Principal, GuardedStore] = {}
        self.on_call: Callable[[str, grpc.StatusCode, float], None] | None = None
        """Is told of every call that ended: its method, its status and its seconds."""
        self.guard: Callable[[Store, Principal, TenantRules], GuardedStore] = GuardedStore
        """Makes the store of a principal. Metrics set one that counts."""

    @property
    def authenticator(self) -> Authenticator:
        """Who is who."""
        return self._authenticator

    async def guarded(self, context: grpc.aio.ServicerContext[Any, Any]) -> GuardedStore:
        """The store as the caller may use it.

        The token is in the metadata `authorization: Bearer …`. Unauthenticated if it is missing,
        wrong or expired. If its key is unknown, the server looks for new keys first.
        """
        token = bearer(context)
        try:
            return self.guarded_by(token)
        except UnknownKey:
            if not await self._authenticator.look_for_key():
                raise
            return self.guarded_by(token)

    def guarded_by(self, token: str | None) -> GuardedStore:
        """The store as the sender of this token may use it."""
        principal = self._authenticator.principal(token)
        found = self._guarded.get(principal)
        if found is None:
            if len(self._guarded) >= _MAX_GUARDED:
                self._guarded.clear()
            found = self.guard(self.store, principal, self.settings.tenants)
            self._guarded[principal] = found
        return found


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
