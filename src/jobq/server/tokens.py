"""Who sends a token: JSON Web Tokens (RFC 7519), and the keys that verify them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import logging
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jwt
import msgspec
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
)

from jobq.access.principal import SCOPES, Principal, Scope
from jobq.core.values.checks import check_tenant
from jobq.core.values.printable import one_line
from jobq.errors import ConfigError, Unauthenticated
from jobq.server.files import read_file

# The keys that sign tokens, and which algorithms fit each of them.
#
# A key is either a shared secret (HMAC) or a public key. An algorithm of one kind is never used
# with a key of the other, so nobody can sign a token with the text of a public key.

log = logging.getLogger("jobq.server")

FAMILIES: dict[str, frozenset[str]] = {
    "oct": frozenset({"HS256", "HS384", "HS512"}),
    "RSA": frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}),
    "EC": frozenset({"ES256", "ES384", "ES512"}),
    "OKP": frozenset({"EdDSA"}),
}
"""The algorithms that fit each type of key, by the names of RFC 7518."""
ALGORITHMS = frozenset().union(*FAMILIES.values())
_ASYMMETRIC = ALGORITHMS - FAMILIES["oct"]

MIN_SECRET = {"HS256": 32, "HS384": 48, "HS512": 64}
"""Bytes of a shared secret: as long as the output of the hash (RFC 7518, 3.2)."""
_MIN_RSA = 2048
"""Bits of an RSA key (RFC 7518, 3.3)."""
_MAX_JWKS = 2**20
"""Bytes of a key set. Real ones have a few kilobytes."""
_FETCH_S = 5.0
"""Seconds that the server of a key set has to respond."""
REFRESH_S = 300.0
"""Seconds between two reads of a key set. Issuers announce a key long before they use it."""
_RETRY_S = 10.0
"""Seconds between two reads for a key that is not in the set, so that wrong tokens cause few."""


class Key(NamedTuple):
    """A key, and the algorithms that it may verify."""

    id: str | None
    value: Any
    algorithms: frozenset[str]

    @property
    def material(self) -> bytes:
        """What makes it this key and no other: the secret, or the public key in DER."""
        if isinstance(self.value, bytes):
            return self.value
        found: bytes = self.value.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return found


class KeySet:
    """Keys by their id. `generation` counts changes, so that caches know."""

    def __init__(self, keys: Iterable[Key] = ()) -> None:
        self.keys = tuple(keys)
        self.generation = 0

    def find(self, id: str | None, algorithm: str) -> Key | None:
        """The key with this id that may verify the algorithm.

        A token without an id is checked with the only key of its algorithm, if there is just one.
        """
        fitting = [key for key in self.keys if algorithm in key.algorithms]
        if id is not None:
            named = [key for key in fitting if key.id == id]
            return named[0] if named else next((k for k in fitting if k.id is None), None)
        return fitting[0] if len(fitting) == 1 else None

    def replace(self, keys: Iterable[Key]) -> None:
        """Use these keys from now on."""
        self.keys = tuple(keys)
        self.generation += 1


def secret_key(secret: bytes, allowed: frozenset[str]) -> Key:
    """The key of a shared secret. Unless the configuration says more, it verifies HS256 only."""
    algorithms = _fitting("oct", allowed or frozenset({"HS256"}))
    least = max(MIN_SECRET[name] for name in algorithms)
    if len(secret) < least:
        raise ConfigError(
            f"the secret of tokens has {len(secret)} bytes, and needs at least {least}: make one "
            "with `openssl rand -base64 64`"
        )
    return Key(None, secret, algorithms)


def public_key(path: Path, allowed: frozenset[str]) -> Key:
    """The key in a PEM file."""
    data = read_file(path)
    if b"PRIVATE KEY" in data:
        raise ConfigError(f"{path} is a private key: the server needs only the public one")
    try:
        value = load_pem_public_key(data)
    except ValueError as e:
        raise ConfigError(f"{path} is not a public key in PEM: {e}") from None
    kinds: dict[str, tuple[type, ...]] = {
        "RSA": (rsa.RSAPublicKey,),
        "EC": (ec.EllipticCurvePublicKey,),
        "OKP": (ed25519.Ed25519PublicKey, ed448.Ed448PublicKey),
    }
    for kind, types in kinds.items():
        if isinstance(value, types):
            if _is_weak(value):
                raise ConfigError(f"{path} has fewer than {_MIN_RSA} bits, which is too weak")
            return Key(None, value, _fitting(kind, allowed))
    raise ConfigError(f"{path} is a key of the kind {type(value).__name__}, which signs no tokens")


def _is_weak(value: Any) -> bool:
    """Whether this is an RSA key that is too short, or a secret that is."""
    if isinstance(value, bytes):
        return len(value) < MIN_SECRET["HS256"]
    return isinstance(value, rsa.RSAPublicKey) and value.key_size < _MIN_RSA


def _fitting(kind: str, allowed: frozenset[str]) -> frozenset[str]:
    found = FAMILIES[kind] & allowed if allowed else FAMILIES[kind]
    if not found:
        raise ConfigError(
            f"auth.algorithms has {', '.join(sorted(allowed))}, and none of them fits the key "
            f"({', '.join(sorted(FAMILIES[kind]))})"
        )
    return found


def parse_jwks(data: bytes, allowed: frozenset[str], *, secrets: bool) -> list[Key]:
    """The keys of a JWK set (RFC 7517). ConfigError if there is none that can be used.

    `secrets`: whether it may contain shared secrets. A set that everybody can download may not.
    """
    try:
        document = json.loads(data)
        entries = document["keys"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise ConfigError('the key set is not JSON of the form {"keys": […]}') from None
    found: list[Key] = []
    for entry in entries if isinstance(entries, list) else []:
        key = _jwk(entry, allowed, secrets)
        if key is not None:
            found.append(key)
    if not found:
        raise ConfigError("the key set has no key that can verify an allowed algorithm")
    return found


def _jwk(entry: Any, allowed: frozenset[str], secrets: bool) -> Key | None:
    """One key of a set. None if it is not for signatures, or of a kind that is not known here."""
    if not isinstance(entry, Mapping) or entry.get("use", "sig") != "sig":
        return None
    kind = entry.get("kty")
    if kind not in FAMILIES or (kind == "oct" and not secrets):
        return None
    algorithms = set(FAMILIES[str(kind)] & (allowed or _ASYMMETRIC))
    if entry.get("alg"):
        algorithms &= {str(entry["alg"])}
    if not algorithms:
        return None
    try:
        value = jwt.PyJWK(dict(entry), algorithm=min(algorithms)).key
    except (jwt.PyJWTError, ValueError, TypeError):
        log.warning("the key %s of the key set cannot be read, and is left out", entry.get("kid"))
        return None
    if isinstance(value, bytes):
        algorithms = {name for name in algorithms if len(value) >= MIN_SECRET[name]}
    if not algorithms or _is_weak(value):
        log.warning("the key %s of the key set is too short, and is left out", entry.get("kid"))
        return None
    return Key(entry.get("kid"), value, frozenset(algorithms))


class JwksSource:
    """A key set in a file or at a URL, read again in the background. A bad read changes nothing."""

    def __init__(
        self,
        location: str | Path,
        allowed: frozenset[str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.location = location
        self.keys = KeySet()
        self.failures = 0
        """Reads that failed since the last one that worked."""
        self._allowed = allowed
        self._clock = clock
        self._data: bytes | None = None
        self._read_at = float("-inf")
        self._reading: asyncio.Task[None] | None = None

    async def load(self) -> None:
        """Read the set. ConfigError if it cannot be used."""
        self._read_at = self._clock()
        data = await asyncio.to_thread(_contents, self.location)
        if data != self._data:
            keys = parse_jwks(data, self._allowed, secrets=isinstance(self.location, Path))
            self.keys.replace(keys)
            if self._data is not None:
                log.info("the key set %s has changed: %d keys", self.location, len(keys))
            self._data = data
        self.failures = 0

    async def refresh(self) -> None:
        """Read the set again. The old keys stay in use if that fails."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.create_task(self._refresh())
        await asyncio.shield(self._reading)

    async def _refresh(self) -> None:
        try:
            await self.load()
        except ConfigError as e:
            self.failures += 1
            log.warning("the key set cannot be read, and the old keys stay in use: %s", e)

    async def fetch_more(self) -> bool:
        """Read the set for a key that is missing. False if it was read only seconds ago."""
        if self._clock() - self._read_at < _RETRY_S:
            return False
        before = self.keys.generation
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self.refresh(), _FETCH_S)
        return self.keys.generation != before

    async def run(self) -> None:
        """Read the set every few minutes, until it is cancelled."""
        while True:
            await asyncio.sleep(REFRESH_S)
            await self.refresh()


def _contents(location: str | Path) -> bytes:
    if isinstance(location, Path):
        return read_file(location)
    request = urllib.request.Request(location, headers={"Accept": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=_FETCH_S) as reply:
            data: bytes = reply.read(_MAX_JWKS + 1)
    except (OSError, ValueError) as e:
        raise ConfigError(f"cannot read {location}: {e}") from e
    if len(data) > _MAX_JWKS:
        raise ConfigError(f"{location} is larger than {_MAX_JWKS:,} bytes: it is not a key set")
    return data


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
