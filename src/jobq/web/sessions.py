"""Signed cookies: who has signed in, and the token of every form; and response headers."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import time
from collections.abc import Callable

import msgspec
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jobq.access.principal import Principal
from jobq.errors import ConfigError

SESSION = "jobq_session"
CSRF = "jobq_csrf"
SESSION_S = 12 * 3600
"""Seconds until a person has to sign in again: a working day."""
_MAX_COOKIE = 4_096
"""Bytes. Browsers keep no larger cookie."""
_SHORTEST = 16
"""Characters of a secret. Whoever guesses it can sign in as anybody."""
_MAX_ENDED = 10_000
"""Sessions that are remembered as signed out."""


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """Who has signed in, until when."""

    principal: Principal
    until_s: float
    name: str
    """Distinguishes two sessions of one person."""
    digest: str | None = None
    """The SHA-256 of the token, if a file of tokens decides whether it is still valid."""
    key: str | None = None
    """The fingerprint of the key that has signed the token, if it was signed."""


class Signer:
    """Makes and verifies cookies and CSRF tokens. Without a secret they are good for this process
    only."""

    def __init__(
        self, secret: str | None = None, *, clock: Callable[[], float] = time.time
    ) -> None:
        if secret is not None and len(secret) < _SHORTEST:
            raise ConfigError(
                f"the secret that signs cookies has {len(secret)} characters and needs at least "
                f"{_SHORTEST}: leave it out, or make one with openssl rand -hex 32"
            )
        key = os.urandom(32) if secret is None else secret.encode()
        self._key = hashlib.sha256(b"jobq.web:" + key).digest()
        self._clock = clock
        self._ended: dict[str, None] = {}

    def begin(
        self, principal: Principal, digest: str | None = None, key: bytes | None = None
    ) -> Session:
        """A session that begins now. It ends with the token, with the key of the token, or after 12
        hours."""
        until_s = self._clock() + SESSION_S
        if principal.expires_s is not None:
            until_s = min(until_s, principal.expires_s)
        return Session(
            principal=principal,
            until_s=until_s,
            name=os.urandom(9).hex(),
            digest=digest,
            key=None if key is None else self.fingerprint(key),
        )

    def fingerprint(self, key: bytes) -> str:
        """A key as a cookie names it. Nobody can try keys against it without our secret."""
        return self._mac("key", key.hex())[:32]

    def cookie(self, session: Session) -> str:
        """A session as the value of a cookie."""
        body = base64.urlsafe_b64encode(msgspec.json.encode(session)).decode()
        return f"{body}.{self._mac('session', body)}"

    def session(self, cookie: str | None) -> Session | None:
        """The session of a cookie. None if it is missing, changed, over or signed out."""
        if not cookie or len(cookie) > _MAX_COOKIE:
            return None
        body, _, mac = cookie.rpartition(".")
        if not hmac.compare_digest(mac.encode(), self._mac("session", body).encode()):
            return None
        try:
            found = msgspec.json.decode(base64.urlsafe_b64decode(body), type=Session)
        except (msgspec.MsgspecError, binascii.Error, ValueError):
            return None
        if self._clock() >= found.until_s or found.name in self._ended:
            return None
        return found

    def end(self, session: Session) -> None:
        """Sign out: the cookie is good for nothing any more, also if somebody has copied it."""
        while len(self._ended) >= _MAX_ENDED:
            del self._ended[next(iter(self._ended))]
        self._ended[session.name] = None

    def left_s(self, session: Session) -> int:
        """Seconds until a session is over."""
        return max(0, int(session.until_s - self._clock()))

    def csrf_token(self, cookie: str, principal: Principal) -> str:
        """The token for forms that belongs to a CSRF cookie. Other sites know neither."""
        return self._mac("csrf", f"{cookie}:{principal.subject}:{principal.tenant}")

    def _mac(self, purpose: str, text: str) -> str:
        data = f"{purpose}:{text}".encode("utf-8", "surrogatepass")
        return hmac.new(self._key, data, hashlib.sha256).hexdigest()


def new_csrf_cookie() -> str:
    """A value of the CSRF cookie that nobody can guess."""
    return os.urandom(16).hex()


# Cookies: only for this application, never readable by scripts, encrypted where pages are.


def with_csrf_cookie(request: Request, response: Response) -> Response:
    """The response with the cookie that the tokens of its forms belong to."""
    cookie = getattr(request.state, "new_csrf_cookie", None)
    if cookie is not None:
        set_cookie(request, response, CSRF, cookie)
    return response


def set_cookie(
    request: Request, response: Response, name: str, value: str, seconds: int | None = None
) -> None:
    """Set a cookie, for some seconds or until the browser is closed."""
    response.set_cookie(
        name,
        value,
        max_age=seconds,
        path=cookie_path(request),
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="lax",
    )


def cookie_path(request: Request) -> str:
    """Where the application is mounted."""
    return str(request.scope.get("root_path", "")).rstrip("/") or "/"


# Headers of every response: what a browser may load, and what it may keep.

CSP = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "font-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
"""Only files of the dashboard itself. No inline script, no inline style, no eval."""

HEADERS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}


class Headers:
    """Adds the headers to every response. What says nothing else is not kept by caches."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        await self._app(scope, receive, with_headers)
