"""The dashboard as an ASGI application: who may come in, which handler serves, errors as pages."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router
from starlette.staticfiles import StaticFiles
from starlette.types import Receive, Scope, Send

from jobq.access.caller_errors import CallerErrors, Unready
from jobq.access.guarded.store import GuardedStore
from jobq.access.principal import Principal
from jobq.access.quotas import TenantRules
from jobq.access.table import ROUTES
from jobq.client.connection import release_handle, shared_handle
from jobq.errors import AccessDenied, InvalidJob, JobqError
from jobq.stores.base import Store
from jobq.web import api, feeds, signing_in
from jobq.web.data.job import download
from jobq.web.data.view import View
from jobq.web.feeds import Hub
from jobq.web.pages import PAGES, Page, handlers
from jobq.web.refusals import path_of, refusal, status_of, wants_json
from jobq.web.render import url, view_of
from jobq.web.sessions import CSRF, Headers, Signer, with_csrf_cookie
from jobq.web.signing_in import EVERYONE, Admission, Gate, SignIn

_STATIC = Path(__file__).parent / "static"
_OPEN = tuple(name.partition(" ")[2] for name, door in ROUTES.items() if not door.signed_in)
"""Paths that need no sign-in: the page to sign in on, and what it loads."""
_MAX_GUARDED = 1_000
"""Principals that are remembered. A guarded store is cheap to make again."""

MakeGuarded = Callable[[Store, Principal, TenantRules], GuardedStore]


class Dashboard:
    """The dashboard, an ASGI application. `jobq.web.app(…)` makes one.

    It opens its store with the first request, and closes it when the server that runs it stops. An
    application that mounts it calls `aclose` when it stops.
    """

    def __init__(
        self,
        store: str | Store,
        *,
        sign_in: SignIn,
        read_only: bool,
        hide_payloads: bool,
        secret: str | None,
        local: Principal = EVERYONE,
        tenants: TenantRules | None = None,
        guard: MakeGuarded = GuardedStore,
        clock: Callable[[], int] | None = None,
    ) -> None:
        self._given = store
        self._handle: Store | None = None
        self._read_only = read_only
        self._hide_payloads = hide_payloads
        self._tenants = tenants or TenantRules()
        self._guard = guard
        self._clock = clock or _now_ms
        self._guarded: dict[Principal, GuardedStore] = {}
        self._gate = Gate(sign_in, signer=Signer(secret), local=local)
        self._error_for_caller = CallerErrors(store if isinstance(store, str) else store.url)
        self._hub = Hub(lambda: self._view(EVERYONE))
        self._router = Router(routes=_routes())
        self._app = Headers(self._serve)

    # ── the application ───────────────────────────────────────────────────────────────────────────

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        try:
            await self.open()
        except JobqError as e:
            await send({"type": "lifespan.startup.failed", "message": str(e)})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def open(self) -> None:
        """Connect to the store. The first request does it otherwise."""
        if self._handle is None:
            self._handle = (
                await shared_handle(self._given) if isinstance(self._given, str) else self._given
            )

    def end_streams(self) -> None:
        """End all live streams, because the server stops. Browsers connect again to another."""
        self._hub.close()

    async def aclose(self) -> None:
        """End live streams and close the store, unless the caller opened it."""
        self.end_streams()
        opened, self._handle = self._handle, None
        self._guarded.clear()
        if isinstance(self._given, str) and opened is not None:
            await release_handle(opened)

    async def __aenter__(self) -> Dashboard:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # ── a request ─────────────────────────────────────────────────────────────────────────────────

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        try:
            response = await self._admitted(request, scope)
        except JobqError as e:
            response = self._refusal(request, e)
        if response is not None:
            await response(scope, receive, send)
            return
        started = False

        async def noting(message: Any) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._router(scope, receive, noting)
        except Exception as e:
            if started:
                raise
            await self._failed(request, e)(scope, receive, send)

    def _failed(self, request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            detail = "there is no such page" if error.status_code == 404 else error.detail
            return refusal(request, error.status_code, detail)
        return self._refusal(request, error)

    def _refusal(self, request: Request, error: Exception) -> Response:
        shown = self._error_for_caller(error, f"{request.method} {request.url.path}")
        return refusal(request, status_of(shown), str(shown))

    async def _admitted(self, request: Request, scope: Scope) -> Response | None:
        """None if the request may go on. Otherwise the response."""
        scope["app"] = self
        state = scope.setdefault("state", {})
        state |= {"gate": self._gate, "hub": self._hub}
        path = path_of(scope)
        if path.startswith(_OPEN):
            return None
        admission = await self._gate.admit(request)
        if admission is None:
            return self._not_signed_in(request, path)
        await self.open()
        self._let_in(request, admission)
        if b"%00" in scope["query_string"]:
            # No name contains it, and PostgreSQL has no text with it.
            raise InvalidJob("the address contains the character 0")
        return None

    def _let_in(self, request: Request, admission: Admission) -> None:
        state = request.state
        state.admission = admission
        state.view = self._view(admission.principal)
        cookie, state.csrf_token = self._gate.csrf(request, admission.principal)
        state.new_csrf_cookie = None if request.cookies.get(CSRF) else cookie

    def _view(self, principal: Principal) -> View:
        if self._read_only:
            reads = principal.may(frozenset({"read"}))
            principal = replace(principal, scopes=frozenset({"read"} if reads else ()))
        guarded = self._guarded.get(principal)
        if guarded is None:
            if self._handle is None:
                raise Unready("the dashboard has closed its store")
            if len(self._guarded) >= _MAX_GUARDED:
                self._guarded.clear()
            guarded = self._guarded[principal] = self._guard(self._handle, principal, self._tenants)
        return View(
            store=guarded,
            principal=principal,
            clock=self._clock,
            read_only=self._read_only,
            hide_payloads=self._hide_payloads,
        )

    def _not_signed_in(self, request: Request, path: str) -> Response:
        if self._gate.by_token and request.method == "GET" and not wants_json(path):
            query = f"?{request.url.query}" if request.url.query else ""
            return RedirectResponse(
                url(request, "sign_in", next=f"{request.url.path}{query}"), status_code=303
            )
        return refusal(request, 401, "nobody has signed in")


# ── routes ────────────────────────────────────────────────────────────────────────────────────────


def _routes() -> list[BaseRoute]:
    routes = [
        Route("/sign-in", signing_in.sign_in_page, methods=["GET"]),
        Route("/sign-in", signing_in.sign_in, methods=["POST"]),
        Route("/sign-out", signing_in.sign_out, methods=["POST"]),
        Route("/live", feeds.live, methods=["GET"]),
        Route("/payload", _payload, methods=["GET"]),
        *api.routes(),
        *(Route(page.path, _page(page), methods=["GET"]) for page in PAGES),
    ]
    return [Mount("/static", _Static(directory=_STATIC)), *map(_guarded, routes)]


def _guarded(route: Route) -> Route:
    """The route, for callers with the scopes of its row in the table of access. A route without a
    row cannot be served."""
    (method,) = (route.methods or set()) - {"HEAD"}
    door = ROUTES[f"{method} {route.path}"]
    if not door.needs:
        return route
    acts = method == "POST"
    what = route.path.removeprefix(f"{api.PREFIX}/").replace("/", ".") if acts else "this page"

    async def checked(request: Request) -> Response:
        view = view_of(request)
        if acts and view.read_only:
            raise AccessDenied(f"this dashboard is read-only: {what} is refused")
        if not door.admits(view.principal):
            have = " ".join(sorted(view.principal.scopes)) or "none"
            raise AccessDenied(f"{what} needs the scope {door.in_words()}, and you have {have}")
        response: Response = await route.endpoint(request)
        return response

    return Route(route.path, checked, methods=[method])


def _page(page: Page) -> Any:
    handler = getattr(handlers, f"{page.name}_page")

    async def get(request: Request) -> Response:
        request.state.page_name = page.name
        response: Response = await handler(request)
        return with_csrf_cookie(request, response)

    return get


async def _payload(request: Request) -> Response:
    """A whole value of a job, to be saved as a file."""
    query = request.query_params
    names = ("tenant", "queue", "id", "part")
    for name in names:
        if not query.get(name):
            raise InvalidJob(f"the address has no {name}")
    tenant, queue, id, part = (query[name] for name in names)
    data = await download(view_of(request), tenant, queue, id, part)  # type: ignore[arg-type]
    return Response(
        data,
        media_type="application/octet-stream",
        headers={"Content-Disposition": f'attachment; filename="{_file_name(part)}"'},
    )


def _file_name(part: str) -> str:
    return f"{''.join(c for c in part if c.isascii() and c.isalnum())}.json"


class _Static(StaticFiles):
    """Files that browsers ask for again each time, with an ETag: they change with each release."""

    def file_response(self, *args: Any, **kwargs: Any) -> Response:
        response = super().file_response(*args, **kwargs)
        response.headers["Cache-Control"] = "no-cache"
        return response


def _now_ms() -> int:
    return int(time.time() * 1000)
