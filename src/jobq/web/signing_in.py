"""Who makes a request, whether it may be another site's, and signing in with a token on a page.

A request is one of these, in this order:

1. With `Authorization: Bearer …`: the token's principal. Scripts use the API like this.
2. The host application's own user, if `sign_in` is a function.
3. The person who has signed in with a token, by the session cookie.
4. Everybody on this machine, if there is no `sign_in`. Requests from elsewhere are refused.

Requests that change something need a CSRF token, except those with a bearer token: a browser never
adds that by itself.
"""

from __future__ import annotations

import hmac
import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from urllib.parse import SplitResult, urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from jobq.access.principal import SCOPES, Principal
from jobq.core.values.checks import shown
from jobq.core.values.hosts import is_loopback
from jobq.errors import AccessDenied, ConfigError, Unauthenticated
from jobq.web.api import back, body_of
from jobq.web.render import render, url
from jobq.web.sessions import (
    CSRF,
    SESSION,
    Session,
    Signer,
    cookie_path,
    new_csrf_cookie,
    set_cookie,
)
from jobq.web.tokens import Authenticator, KeyHolder, TokenFile, digest_of

HostAuth = Callable[[Request], "Principal | Awaitable[Principal | None] | None"]
"""The host application's own sign-in: who makes a request. None: nobody who may."""
SignIn = Authenticator | HostAuth | None

EVERYONE = Principal(subject="", tenant=None, scopes=SCOPES)


def everyone(request: Request) -> Principal:
    """A `sign_in` that lets everybody who reaches the dashboard do everything."""
    return EVERYONE


class Admission(msgspec.Struct, frozen=True, kw_only=True):
    """A request that was let in."""

    principal: Principal
    session: Session | None = None
    bearer: bool = False
    """Whether the request has a bearer token, so that it needs no CSRF token."""


class TooManyAttempts(AccessDenied):
    """Somebody has tried too many wrong tokens."""


class Gate:
    """Decides who makes a request. One per application."""

    def __init__(
        self,
        sign_in: SignIn,
        *,
        signer: Signer,
        local: Principal = EVERYONE,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.authenticator = sign_in if isinstance(sign_in, Authenticator) else None
        self._host: HostAuth | None = None
        if self.authenticator is None and sign_in is not None:
            if not callable(sign_in):
                raise ConfigError(
                    f"sign_in={type(sign_in).__name__} is neither a TokenFile nor a function that "
                    "returns a Principal for a request"
                )
            self._host = sign_in
        self._local = local
        self.signer = signer
        self._attempts = Attempts(clock=clock)

    @property
    def by_token(self) -> bool:
        """Whether people sign in with a token on a page of the dashboard."""
        return self.authenticator is not None

    async def admit(self, request: Request) -> Admission | None:
        """Who makes the request. None: nobody has signed in.

        Unauthenticated if its bearer token is wrong. AccessDenied if it comes from elsewhere.
        """
        token = _bearer(request)
        if token is not None and self.authenticator is not None:
            principal = await self._verified(request, token)
            return Admission(principal=principal, bearer=True)
        if self._host is not None:
            found = self._host(request)
            mine = await found if inspect.isawaitable(found) else found
            return None if mine is None else Admission(principal=mine)
        if self.authenticator is not None:
            session = self.signer.session(request.cookies.get(SESSION))
            return None if session is None else self._signed_in(session)
        check_local(request)
        return Admission(principal=self._local)

    def _signed_in(self, session: Session) -> Admission | None:
        if not isinstance(self.authenticator, TokenFile):
            # A session of a file, from a dashboard with the same secret, cannot be looked up here.
            is_ours = session.digest is None and self._has_key_of(session)
            return Admission(principal=session.principal, session=session) if is_ours else None
        try:
            principal = self.authenticator.by_digest(session.digest or "")
        except Unauthenticated:
            return None
        return Admission(principal=principal, session=session)

    def _has_key_of(self, session: Session) -> bool:
        """Whether the key that signed the token of a session is still accepted."""
        if not isinstance(self.authenticator, KeyHolder):
            return session.key is None
        return session.key in map(self.signer.fingerprint, self.authenticator.keys())

    async def sign_in(self, request: Request, token: str) -> Session:
        """A session for the sender of a token. Unauthenticated if the token is wrong."""
        principal = await self._verified(request, token)
        found = self.authenticator
        return self.signer.begin(
            principal,
            digest_of(token) if isinstance(found, TokenFile) else None,
            found.key_of(token) if isinstance(found, KeyHolder) else None,
        )

    async def _verified(self, request: Request, token: str) -> Principal:
        if self.authenticator is None:
            raise Unauthenticated("this dashboard does not take tokens")
        address = request.client.host if request.client else ""
        self._attempts.check(address)
        try:
            try:
                return self.authenticator.principal(token)
            except Unauthenticated:
                if not await self.authenticator.look_for_key():
                    raise
                return self.authenticator.principal(token)
        except Unauthenticated:
            self._attempts.failed(address)
            raise

    # ── requests of other sites ───────────────────────────────────────────────────────────────────

    def csrf(self, request: Request, principal: Principal) -> tuple[str, str]:
        """The CSRF cookie of a request, or a new one, and the token for the forms of its page."""
        cookie = request.cookies.get(CSRF) or new_csrf_cookie()
        return cookie, self.signer.csrf_token(cookie, principal)

    def check_csrf(self, request: Request, admission: Admission, given: object) -> None:
        """AccessDenied if a request that changes something may come from another site."""
        check_origin(request)
        if admission.bearer:
            return
        cookie = request.cookies.get(CSRF)
        expected = self.signer.csrf_token(cookie, admission.principal) if cookie else ""
        text = given if isinstance(given, str) else ""  # a field of JSON may be anything
        if not text or not cookie or not hmac.compare_digest(text.encode(), expected.encode()):
            raise AccessDenied(
                "the CSRF token is missing or out of date: load the page again, and send the "
                "request once more"
            )


def check_origin(request: Request) -> None:
    """AccessDenied if a browser says that the request comes from a page of another site."""
    site = request.headers.get("sec-fetch-site")
    if site not in (None, "same-origin", "none"):
        raise AccessDenied("the request comes from a page of another site")
    origin = request.headers.get("origin")
    if origin is not None and _split(origin).netloc != request.headers.get("host", ""):
        raise AccessDenied("the request comes from a page of another site")


def check_local(request: Request) -> None:
    """AccessDenied unless a request comes from this machine, to an address of this machine.

    A page of another site can make a browser send requests to 127.0.0.1 under a name that it
    chose. So the name in `Host` is checked too.
    """
    client = request.client.host if request.client else ""
    host = _split(f"//{request.headers.get('host', '')}").hostname or ""
    forwarded = any(
        name in request.headers for name in ("forwarded", "x-forwarded-for", "x-forwarded-host")
    )
    if forwarded or not is_loopback(client) or not is_loopback(host):
        raise AccessDenied(
            "without sign-in, this dashboard is only for browsers on its own machine: give sign_in "
            "(jobq.web.app) or --tokens-file (jq-ctl web)"
        )


def _split(address: str) -> SplitResult:
    """The parts of an address. AccessDenied if it is none, such as `http://[`."""
    try:
        return urlsplit(address)
    except ValueError:
        raise AccessDenied(f"{shown(address)} is not an address") from None


def _bearer(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


class Attempts:
    """Counts wrong tokens, so that nobody can try many."""

    PER_ADDRESS = 10
    IN_ALL = 300
    WINDOW_S = 60.0

    def __init__(self, *, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._began = clock()
        self._failed: dict[str, int] = {}

    def check(self, address: str) -> None:
        """TooManyAttempts if this address, or all together, have failed too often."""
        if self._clock() - self._began >= self.WINDOW_S:
            self._began, self._failed = self._clock(), {}
        often = self._failed.get(address, 0) >= self.PER_ADDRESS
        if often or sum(self._failed.values()) >= self.IN_ALL:
            raise TooManyAttempts("too many wrong tokens: try again in a minute")

    def failed(self, address: str) -> None:
        """A wrong token came from this address."""
        self._failed[address] = self._failed.get(address, 0) + 1


log = logging.getLogger("jobq.web")


async def sign_in_page(request: Request) -> Response:
    """The page on which a person enters a token."""
    gate: Gate = request.state.gate
    if not gate.by_token:
        return RedirectResponse(url(request, "overview"), status_code=303)
    return render(request, "sign_in.html", next=request.query_params.get("next", ""), problem="")


async def sign_in(request: Request) -> Response:
    """Begin a session. A wrong token shows the page again."""
    gate: Gate = request.state.gate
    fields, _ = await body_of(request)
    target = back(request, fields)
    token = str(fields.get("token") or "").strip()
    try:
        check_origin(request)
        session = await gate.sign_in(request, token)
    except Unauthenticated as e:
        return render(request, "sign_in.html", status=401, next=target, problem=str(e))
    except TooManyAttempts as e:
        page = render(request, "sign_in.html", status=429, next=target, problem=str(e))
        page.headers["Retry-After"] = "60"
        return page
    response = RedirectResponse(target, status_code=303)
    set_cookie(request, response, SESSION, gate.signer.cookie(session), gate.signer.left_s(session))
    log.info("%s has signed in", session.principal.subject)
    return response


async def sign_out(request: Request) -> Response:
    """End the session."""
    gate: Gate = request.state.gate
    admission: Admission = request.state.admission
    fields, _ = await body_of(request)
    token = request.headers.get("x-csrf-token") or fields.get("csrf_token")
    gate.check_csrf(request, admission, token)
    if admission.session is not None:
        gate.signer.end(admission.session)
    response = RedirectResponse(url(request, "sign_in"), status_code=303)
    response.delete_cookie(SESSION, path=cookie_path(request))
    return response
