"""Whose queues a caller means when it does not say."""

from __future__ import annotations

import os

from jobq.core.checks import shown
from jobq.errors import ConfigError
from jobq.stores.base.token import claimed_tenant

DEFAULT_TENANT = "default"


def tenant_for(url: str, named: str | None) -> str:
    """The tenant that a caller has named; else JQ_TENANT; else the token's, over grpc://; else
    `default`.

    ConfigError if the name and the token disagree. The server would say that there is no such
    queue, because it never tells anything about other tenants.
    """
    named = os.environ.get("JQ_TENANT") or None if named is None else named
    if not url.lower().startswith(("grpc://", "grpcs://")):
        return DEFAULT_TENANT if named is None else named
    claimed = claimed_tenant()
    if named is not None and claimed is not None and named != claimed:
        raise ConfigError(
            f"tenant={shown(named)}, but the token is for the tenant {shown(claimed)}: leave the "
            "tenant out, or use a token of that tenant"
        )
    return named if named is not None else claimed or DEFAULT_TENANT
