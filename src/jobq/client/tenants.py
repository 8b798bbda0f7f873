"""Whose queues a caller means when it does not say."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

from jobq.core.values.checks import shown
from jobq.errors import ConfigError
from jobq.stores import open_store
from jobq.stores.base import Store
from jobq.stores.base.urls import claimed_tenant, token

DEFAULT_TENANT = "default"

_granted: dict[str, str | None] = {}
"""By URL: the tenant of the client's certificate, as the jq-server has said."""


def tenant_for(url: str, named: str | None) -> str | None:
    """The tenant that a caller has named; else JQ_TENANT; else the token's, over grpc://; else
    `default`. None if only the jq-server knows it: the client has a certificate and no token.

    ConfigError if the name and the token disagree. The server would say that there is no such
    queue, because it never tells anything about other tenants.
    """
    named = os.environ.get("JQ_TENANT") or None if named is None else named
    if not url.lower().startswith(("grpc://", "grpcs://")):
        return DEFAULT_TENANT if named is None else named
    claimed = claimed_tenant()
    if named is not None and claimed is not None and named != claimed:
        raise _other(named, claimed, "token")
    if named is not None:
        return named
    from urllib.parse import parse_qs, urlsplit  # 3 ms, and only clients of a server need it

    if token() is None and "cert" in parse_qs(urlsplit(url).query):
        return None
    return claimed or DEFAULT_TENANT


def granted_tenant(url: str) -> str:
    """The tenant of the client's certificate. Asks the jq-server, unless it has said so before.

    It blocks then. A queue that is opened first never asks."""
    if url not in _granted:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(lambda: asyncio.run(_ask(url))).result()
    return _granted[url] or DEFAULT_TENANT


async def _ask(url: str) -> None:
    async with open_store(url) as store:
        learn_tenant(url, store)


def learn_tenant(url: str, store: Store) -> None:
    """Remember what the server of an open store has said."""
    _granted[url] = _own(store)


def check_own(store: Store, tenant: str) -> None:
    """ConfigError if the server of an open store has said that the client is another tenant's."""
    own = _own(store)
    if own is not None and own != tenant:
        raise _other(tenant, own, "certificate" if token() is None else "token")


def _own(store: Store) -> str | None:
    """The only tenant that the caller may use, if the store is a jq-server's."""
    found = getattr(store, "tenant", None)
    return found if isinstance(found, str) else None


def _other(named: str, own: str, proof: str) -> ConfigError:
    return ConfigError(
        f"tenant={shown(named)}, but the {proof} is for the tenant {shown(own)}: leave the "
        f"tenant out, or use a {proof} of that tenant"
    )
