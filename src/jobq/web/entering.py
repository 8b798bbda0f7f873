"""Signing in with a token on a page, and signing out."""

from __future__ import annotations

import logging

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from jobq.errors import Unauthenticated
from jobq.web.api import back, body_of
from jobq.web.cookies import cookie_path, set_cookie
from jobq.web.render import render, url
from jobq.web.sessions import SESSION
from jobq.web.signing_in import Admission, Gate, TooManyAttempts, check_origin

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
