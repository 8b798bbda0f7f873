"""The keys that sign tokens, and which algorithms fit each of them.

A key is either a shared secret (HMAC) or a public key. An algorithm of one kind is never used with
a key of the other, so nobody can sign a token with the text of a public key.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
import urllib.request
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_public_key,
)

from jobq.errors import ConfigError
from jobq.server.files import read

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
    data = read(path)
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
        return read(location)
    request = urllib.request.Request(location, headers={"Accept": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=_FETCH_S) as reply:
            data: bytes = reply.read(_MAX_JWKS + 1)
    except (OSError, ValueError) as e:
        raise ConfigError(f"cannot read {location}: {e}") from e
    if len(data) > _MAX_JWKS:
        raise ConfigError(f"{location} is larger than {_MAX_JWKS:,} bytes: it is not a key set")
    return data
