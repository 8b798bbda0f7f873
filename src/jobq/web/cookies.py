"""Cookies: only for this application, never readable by scripts, encrypted where pages are."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from jobq.web.sessions import CSRF


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
