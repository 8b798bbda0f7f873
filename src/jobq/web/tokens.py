"""Tokens that people sign in with: from a file, or JSON Web Tokens as jq-server verifies them."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from jobq.access.principal import SCOPES, Principal, Scope
from jobq.core.values.checks import check_actor, check_tenant
from jobq.errors import ConfigError, Unauthenticated

log = logging.getLogger("jobq.web")

_SHORTEST = 16
"""Characters of a token. Shorter ones can be guessed."""
_LONGEST = 16 * 1024
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@runtime_checkable
class Authenticator(Protocol):
    """Tells who sends a token. The `Tokens` of a jq-server is one, and so is a `TokenFile`."""

    def principal(self, token: str | None) -> Principal:
        """Who sends this token. Unauthenticated says what is wrong with it."""
        ...

    async def look_for_key(self) -> bool:
        """Look for new keys, because a token has an unknown one. True if there are any."""
        ...


@runtime_checkable
class KeyHolder(Protocol):
    """An authenticator whose tokens are signed with keys: a session ends with the key of its token.
    The `Tokens` of a jq-server is one."""

    def key_of(self, token: str) -> bytes:
        """The key that verifies a good token."""
        ...

    def keys(self) -> Sequence[bytes]:
        """The keys that are accepted now."""
        ...


class TokenFile:
    """Tokens in a file, one per line: `TOKEN NAME SCOPES [TENANT]`.

        # scopes: read, produce, work, admin, joined by commas. Without a tenant: all tenants.
        2c7f0c1a9be14e70b3 alice admin
        sha256:9f86d081…   bob   read,produce acme

    `sha256:` and 64 hex digits stand for a token that is not in the file itself. The file is read
    again when it changes, so a token ends when its line is removed.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._stamp: tuple[int, int, int] | None = None
        self._principals: dict[str, Principal] = {}
        self._refresh()

    def principal(self, token: str | None) -> Principal:
        """Who sends this token."""
        if not token or len(token) > _LONGEST:
            raise Unauthenticated("there is no such token")
        return self.by_digest(digest_of(token))

    def by_digest(self, digest: str) -> Principal:
        """Who has the token with this SHA-256. Unauthenticated if its line is gone."""
        self._refresh()
        found = self._principals.get(digest)
        if found is None:
            raise Unauthenticated("there is no such token")
        return found

    async def look_for_key(self) -> bool:
        """A file has no keys."""
        return False

    def _refresh(self) -> None:
        try:
            stat = self._path.stat()
            stamp = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if stamp == self._stamp:
                return
            text = self._path.read_text()
        except (OSError, UnicodeDecodeError) as e:
            if self._stamp is None:
                raise ConfigError(f"cannot read the tokens in {self._path}: {e}") from e
            log.error("cannot read the tokens in %s, so nobody can sign in: %s", self._path, e)
            self._principals, self._stamp = {}, (0, 0, 0)
            return
        try:
            principals = dict(_read(self._path, text))
        except ConfigError as e:
            if self._stamp is None:
                raise
            log.error("%s; the tokens that were read before stay in force", e)
        else:
            self._principals = principals
        if stat.st_mode & 0o004 and self._stamp is None:
            log.warning("every user of this machine can read the tokens in %s", self._path)
        self._stamp = stamp


def digest_of(token: str) -> str:
    """The SHA-256 of a token."""
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def _read(path: Path, text: str) -> Iterator[tuple[str, Principal]]:
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"{path}, line {number}"
        if not 3 <= len(words) <= 4:
            raise ConfigError(f"{where}: write TOKEN NAME SCOPES [TENANT]")
        token, name, scopes = words[:3]
        if token.startswith("sha256:"):
            if not _DIGEST.fullmatch(token):
                raise ConfigError(f"{where}: sha256: must be followed by 64 hex digits")
            digest = token.removeprefix("sha256:")
        elif len(token) < _SHORTEST:
            raise ConfigError(f"{where}: a token needs at least {_SHORTEST} characters")
        else:
            digest = digest_of(token)
        yield (
            digest,
            Principal(
                subject=check_actor(name, error=ConfigError),
                tenant=None if len(words) == 3 else check_tenant(words[3], error=ConfigError),
                scopes=_scopes(scopes, where),
            ),
        )


def _scopes(text: str, where: str) -> frozenset[Scope]:
    names = text.split(",")
    for name in names:
        if name not in SCOPES:
            known = ", ".join(sorted(SCOPES))
            raise ConfigError(f"{where}: {name!r} is not a scope: use {known}")
    return frozenset(scope for scope in SCOPES if scope in names)
