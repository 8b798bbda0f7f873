"""Who sends a token: JSON Web Tokens (RFC 7519), verified with the keys of the server."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jwt
import msgspec

from jobq.access.principal import SCOPES, Principal, Scope
from jobq.core.checks import check_tenant
from jobq.core.printable import one_line
from jobq.errors import ConfigError, Unauthenticated
from jobq.server.keys import JwksSource, Key, KeySet

_MAX_TOKEN = 16 * 2**10
"""Bytes of a token. gRPC's own limit for all metadata is 8 kB by default."""
_MAX_CACHED = 10_000
"""Tokens that are remembered. A verification takes about 0.1 ms."""


class TokenRules(msgspec.Struct, frozen=True, kw_only=True):
    """What a token must say."""

    issuer: str | None = None
    audience: str | None = None
    leeway_s: float = 30.0
    tenant_claim: str = "tenant"
    scopes_claim: str = "scope"
    default_tenant: str | None = None


class UnknownKey(Unauthenticated):
    """The token is signed with a key that is not known (yet)."""


class _Known(NamedTuple):
    principal: Principal
    expires_s: float
    generation: int
    key: Key


class Tokens:
    """Verifies tokens, and remembers those that were good until they expire."""

    def __init__(
        self,
        keys: KeySet,
        rules: TokenRules,
        *,
        source: JwksSource | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._keys = keys
        self._rules = rules
        self._source = source
        self._clock = clock
        self._known: dict[bytes, _Known] = {}

    def principal(self, token: str | None) -> Principal:
        """Who sends this token. Unauthenticated says what is wrong with it."""
        return self._look_up(token).principal

    def key_of(self, token: str) -> bytes:
        """The key that verifies this token."""
        return self._look_up(token).key.material

    def keys(self) -> list[bytes]:
        """The keys that are accepted now."""
        return [key.material for key in self._keys.keys]

    def _look_up(self, token: str | None) -> _Known:
        if not token:
            raise Unauthenticated(
                "this server needs a token, and the call has none: set JQ_TOKEN or JQ_TOKEN_FILE, "
                "or send the metadata `authorization: Bearer …`"
            )
        if len(token) > _MAX_TOKEN:
            raise Unauthenticated(f"the token is longer than {_MAX_TOKEN:,} bytes")
        digest = hashlib.sha256(token.encode("utf-8", "surrogatepass")).digest()
        known = self._known.get(digest)
        if (
            known is not None
            and known.generation == self._keys.generation
            and self._clock() < known.expires_s
        ):
            return known
        return self._verified(token, digest)

    async def look_for_key(self) -> bool:
        """Read the key set again, because a token has an unknown key. True if it has changed."""
        return self._source is not None and await self._source.fetch_more()

    def _verified(self, token: str, digest: bytes) -> _Known:
        self._known.pop(digest, None)
        claims, key = self._claims(token)
        expires_s = float(claims["exp"]) + self._rules.leeway_s
        principal = self._principal(claims, expires_s)
        if len(self._known) >= _MAX_CACHED:
            del self._known[next(iter(self._known))]  # the oldest
        known = self._known[digest] = _Known(principal, expires_s, self._keys.generation, key)
        return known

    def _claims(self, token: str) -> tuple[dict[str, Any], Key]:
        try:
            header = jwt.get_unverified_header(token)
        except Exception:  # PyJWT lets some errors of JSON through
            raise Unauthenticated("the token is not a JSON Web Token") from None
        algorithm, id = header.get("alg"), header.get("kid")
        key = self._keys.find(id, algorithm) if isinstance(algorithm, str) else None
        if key is None or not isinstance(algorithm, str):
            raise UnknownKey(
                f"the token is signed with {one_line(str(algorithm))} and the key "
                f"{one_line(str(id))}, which this server does not accept"
            )
        return self._decoded(token, key.value, algorithm), key

    def _decoded(self, token: str, key: Any, algorithm: str) -> dict[str, Any]:
        rules = self._rules
        try:
            # Times are compared here, with the clock of this object.
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                issuer=rules.issuer,
                audience=rules.audience,
                options={
                    "require": ["exp", *(["iss"] if rules.issuer else [])],
                    "verify_aud": rules.audience is not None,
                    "verify_iss": rules.issuer is not None,
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except jwt.InvalidIssuerError:
            raise Unauthenticated(f"the token is not of the issuer {rules.issuer!r}") from None
        except (jwt.InvalidAudienceError, jwt.MissingRequiredClaimError) as e:
            raise Unauthenticated(f"the token is not for this server: {one_line(str(e))}") from None
        except jwt.InvalidSignatureError:
            raise Unauthenticated("the signature of the token is wrong") from None
        except Exception as e:  # a token is a stranger's text: whatever it causes is a refusal
            raise Unauthenticated(f"the token is not valid: {type(e).__name__}") from None
        self._check_times(claims)
        return claims

    def _check_times(self, claims: dict[str, Any]) -> None:
        now, leeway_s = self._clock(), self._rules.leeway_s
        expires, begins = _seconds(claims, "exp"), _seconds(claims, "nbf")
        if expires is None:
            raise Unauthenticated("the token has no expiry (claim exp)")
        if now >= expires + leeway_s:
            raise Unauthenticated(f"the token expired {now - expires:.0f} s ago: get a new one")
        if begins is not None and now < begins - leeway_s:
            raise Unauthenticated(f"the token is not valid yet: it begins in {begins - now:.0f} s")

    def _principal(self, claims: dict[str, Any], expires_s: float) -> Principal:
        rules = self._rules
        scopes = _scopes(claims.get(rules.scopes_claim))
        tenant = claims.get(rules.tenant_claim)
        if tenant is None and "admin" not in scopes:
            tenant = rules.default_tenant
            if tenant is None:
                raise Unauthenticated(
                    f"the token names no tenant (claim {rules.tenant_claim}), and only a token "
                    "with the scope admin may do without"
                )
        if tenant is not None:
            try:
                tenant = check_tenant(tenant, error=ConfigError)
            except ConfigError as e:
                raise Unauthenticated(f"the claim {rules.tenant_claim} of the token: {e}") from None
        subject = claims.get("sub")
        return Principal(
            subject=one_line(subject)[:128] if isinstance(subject, str) and subject else "token",
            tenant=tenant,
            scopes=scopes,
            expires_s=expires_s,
        )


def _seconds(claims: dict[str, Any], name: str) -> float | None:
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < 1e12:
        raise Unauthenticated(f"the claim {name} of the token is not a time")
    return float(value)


def _scopes(value: object) -> frozenset[Scope]:
    """The scopes of a claim: a list, or a string with spaces (RFC 8693). Others are left out.

    A scope may be written `jobq:read`, because issuers share their scopes among services.
    """
    if isinstance(value, str):
        words = value.replace(",", " ").split()
    elif isinstance(value, list):
        words = [word for word in value if isinstance(word, str)]
    else:
        words = []
    found = {word.removeprefix("jobq:") for word in words}
    return frozenset(scope for scope in SCOPES if scope in found)
