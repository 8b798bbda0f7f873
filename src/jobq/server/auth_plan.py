"""From the `auth` section of a configuration to how tokens are verified."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from jobq.core.checks import check_tenant
from jobq.core.hosts import is_loopback
from jobq.core.redact import redacted_url
from jobq.errors import ConfigError
from jobq.server.config import AuthConfig
from jobq.server.files import secret_of
from jobq.server.keys import ALGORITHMS, JwksSource, KeySet, public_key, secret_key
from jobq.server.tokens import TokenRules

_MAX_LEEWAY_S = 3_600.0
"""Seconds. Clocks differ by less; a larger number would undo the expiry of tokens."""


class AuthPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How tokens are verified."""

    rules: TokenRules
    keys: KeySet
    source: JwksSource | None = None


def plan_auth(auth: AuthConfig, environment: Mapping[str, str]) -> AuthPlan | None:
    """How tokens are verified. None if no key is configured. ConfigError names what is wrong."""
    secret = secret_of(auth.secret or environment.get("JQ_JWT_SECRET"), auth.secret_path)
    ways = {
        "auth.jwks_url": auth.jwks_url,
        "auth.jwks_path": auth.jwks_path,
        "auth.public_key_path": auth.public_key_path,
        "a shared secret": secret,
    }
    given = [name for name, value in ways.items() if value]
    if not given:
        if auth != AuthConfig():
            raise ConfigError(
                "auth has no key: set auth.jwks_url, jwks_path or public_key_path, or "
                "JQ_AUTH_SECRET for tokens with a shared secret"
            )
        return None
    if len(given) > 1:
        raise ConfigError(f"auth has several keys ({', '.join(given)}): set one of them")
    allowed = _algorithms(auth)
    if not 0 <= auth.leeway_s <= _MAX_LEEWAY_S:
        raise ConfigError(
            f"auth.leeway_s is {auth.leeway_s:g}: use 0 to {_MAX_LEEWAY_S:g} seconds, because "
            "tokens are valid for so much longer"
        )
    if auth.default_tenant is not None:
        check_tenant(auth.default_tenant, error=ConfigError)
    rules = TokenRules(
        issuer=auth.issuer,
        audience=auth.audience,
        leeway_s=auth.leeway_s,
        tenant_claim=auth.tenant_claim,
        scopes_claim=auth.scopes_claim,
        default_tenant=auth.default_tenant,
    )
    if secret:
        return AuthPlan(rules=rules, keys=KeySet([secret_key(secret.encode(), allowed)]))
    if auth.public_key_path:
        return AuthPlan(rules=rules, keys=KeySet([public_key(Path(auth.public_key_path), allowed)]))
    source = JwksSource(Path(auth.jwks_path) if auth.jwks_path else _jwks_url(auth), allowed)
    return AuthPlan(rules=rules, keys=source.keys, source=source)


def _jwks_url(auth: AuthConfig) -> str:
    url = auth.jwks_url or ""
    parts = urlsplit(url)
    safe = parts.scheme == "https" or (parts.scheme == "http" and is_loopback(parts.hostname or ""))
    if not safe:
        raise ConfigError(
            f"auth.jwks_url is {redacted_url(url)}: keys must come over https, or anybody on the "
            "network could replace them"
        )
    if not auth.issuer or not auth.audience:
        raise ConfigError(
            "auth.jwks_url needs auth.issuer and auth.audience: without them, the server would "
            "accept tokens that this issuer made for other services"
        )
    return url


def _algorithms(auth: AuthConfig) -> frozenset[str]:
    for name in auth.algorithms:
        if name not in ALGORITHMS:
            raise ConfigError(
                f"auth.algorithms has {name!r}; use some of {', '.join(sorted(ALGORITHMS))}"
            )
    return frozenset(auth.algorithms)
