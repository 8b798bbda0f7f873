"""Errors as responses: JSON for the API, pages for people."""

from __future__ import annotations

from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from jobq.errors import (
    AccessDenied,
    ConfigError,
    InvalidJob,
    JobNotFound,
    JobqError,
    LockTimeout,
    PayloadTooLarge,
    QueueFull,
    QuotaExceeded,
    StoreUnavailable,
    Unauthenticated,
)
from jobq.web.api import PREFIX, json_response
from jobq.web.render import render
from jobq.web.signing_in import TooManyAttempts

_STATUS: tuple[tuple[type[JobqError], int], ...] = (
    (TooManyAttempts, 429),
    (QuotaExceeded, 429),
    (Unauthenticated, 401),
    (AccessDenied, 403),
    (JobNotFound, 404),
    (PayloadTooLarge, 413),
    (InvalidJob, 400),
    (ConfigError, 400),
    (QueueFull, 409),
    (LockTimeout, 503),
    (StoreUnavailable, 503),
)
"""The first that fits counts. Any other error of jobq is a 500."""


def status_of(error: JobqError) -> int:
    for kind, status in _STATUS:
        if isinstance(error, kind):
            return status
    return 500


def refusal(request: Request, status: int, detail: str) -> Response:
    """An error as JSON for the API, as a page for people."""
    title = HTTPStatus(status).phrase
    if wants_json(path_of(request.scope)) or "hx-request" in request.headers:
        problem = {
            "type": "about:blank",
            "title": title,
            "status": status,
            "detail": detail,
            "message": detail,
        }
        response = json_response(problem, status)
        response.headers["Content-Type"] = "application/problem+json"
    else:
        response = render(request, "error.html", status=status, title=title, detail=detail)
    if status == 401:
        response.headers["WWW-Authenticate"] = "Bearer"
    if status in (429, 503):
        response.headers["Retry-After"] = "60" if status == 429 else "5"
    return response


def wants_json(path: str) -> bool:
    return path.startswith((PREFIX, "/live"))


def path_of(scope: Scope) -> str:
    """The path below the mount."""
    path, root = str(scope["path"]), str(scope.get("root_path", "")).rstrip("/")
    return path[len(root) :] if root and path.startswith(f"{root}/") else path
