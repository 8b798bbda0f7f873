"""The OpenAPI document of the JSON API, made from the same tables as its routes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from jobq.access.table import Door
from jobq.core.version import __version__
from jobq.web.data.actions import ACTIONS, Action
from jobq.web.data.bodies import BulkDone, Done
from jobq.web.data.reads import READS, Read, SessionShown
from jobq.web.data.view import Shape


class Refusal(Shape, frozen=True, kw_only=True):
    """Why a request was refused (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    """For a person."""
    message: str
    """The same as `detail`."""


_REFS = "#/components/schemas/{name}"
_ERRORS = {
    "400": "A field is wrong, missing or unknown.",
    "401": "Nobody has signed in, or the token is wrong.",
    "403": "The caller's scopes do not allow it, the dashboard is read-only, or the CSRF token is "
    "missing.",
    "404": "There is no such queue, job, schedule or worker.",
    "503": "The store is unavailable.",
}


def document(server: str) -> dict[str, Any]:
    """The document. `server` is the path of the API, e.g. `/jobs/api/v1`."""
    shapes = _shapes()
    refs, components = msgspec.json.schema_components(shapes, ref_template=_REFS)
    ref_of = dict(zip(shapes, refs, strict=True))
    paths: dict[str, Any] = {
        "/openapi.json": {
            "get": {
                "operationId": "openapi",
                "summary": "This document.",
                "responses": {"200": {"description": "OpenAPI 3.1"}},
            }
        },
        "/session": {
            "get": {
                "operationId": "session",
                "summary": "Who makes the request, and the CSRF token.",
                "responses": _responses(ref_of, SessionShown),
            }
        },
    }
    paths |= {read.path: {"get": _get(read, ref_of, components)} for read in READS}
    paths |= {action.path: {"post": _post(action, ref_of)} for action in ACTIONS.values()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "jobq dashboard",
            "version": __version__,
            "description": "What the dashboard shows, and what it does. Send a bearer token, or "
            "the session cookie with the header X-CSRF-Token. Times are milliseconds since the "
            "epoch.",
        },
        "servers": [{"url": server}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"token": []}, {}],
    }


def _shapes() -> list[type[Shape]]:
    found: list[type[Shape]] = [Done, BulkDone, SessionShown, Refusal]
    found += [read.reply for read in READS]
    found += [read.query for read in READS]
    found += [action.body for action in ACTIONS.values()]
    return list(dict.fromkeys(found))


def _get(read: Read, ref_of: dict[type[Shape], Any], components: dict[str, Any]) -> dict[str, Any]:
    return {
        "operationId": "get" + read.path.replace("/", "_"),
        "summary": _summary(read.run),
        "description": _needs(read.door),
        "parameters": list(_parameters(components[read.query.__name__])),
        "responses": _responses(ref_of, read.reply),
    }


def _parameters(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    required = schema.get("required", ())
    for name, kind in schema["properties"].items():
        yield {"name": name, "in": "query", "required": name in required, "schema": kind}


def _post(action: Action, ref_of: dict[type[Shape], Any]) -> dict[str, Any]:
    return {
        "operationId": action.name,
        "summary": _summary(action.run),
        "description": _needs(action.door),
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": ref_of[action.body]}},
        },
        "responses": _responses(ref_of, BulkDone if action.bulk else Done),
    }


def _responses(ref_of: dict[type[Shape], Any], reply: type[Shape]) -> dict[str, Any]:
    problem = {"application/problem+json": {"schema": ref_of[Refusal]}}
    return {
        "200": {"description": "Done", "content": {"application/json": {"schema": ref_of[reply]}}},
        **{status: {"description": why, "content": problem} for status, why in _ERRORS.items()},
    }


def _summary(function: Any) -> str:
    return " ".join((function.__doc__ or "").split())


def _needs(door: Door) -> str:
    return f"Needs the scope {door.in_words()}. admin is always enough."
