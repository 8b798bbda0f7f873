"""The JSON API under /api/v1: `READS` as GET, `ACTIONS` as POST; and its OpenAPI document.

Replies are JSON. An error is `application/problem+json` (RFC 9457), whose `detail` is for a person.
A POST takes JSON, or a form: then a reader without JavaScript is sent back to the page.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from jobq.access.table import Door
from jobq.core.version import __version__
from jobq.errors import InvalidJob, PayloadTooLarge
from jobq.web.data.actions import ACTIONS, Action
from jobq.web.data.bodies import BulkDone, Done
from jobq.web.data.reads import READS, Read, SessionShown
from jobq.web.data.view import Shape
from jobq.web.render import view_of
from jobq.web.sessions import with_csrf_cookie

# The OpenAPI document of the JSON API, made from the same tables as its routes.


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


PREFIX = "/api/v1"
_MAX_BODY = 4 * 2**20
"""Bytes of a request. New arguments of a job have 1 MB at most, and a form encodes each byte as up
to three."""
_MAX_FIELDS = 100
"""Fields of a form. The longest one of the dashboard has about ten."""
_NOT_FIELDS = frozenset({"csrf_token", "next", "part"})
"""Names in a form or a query that are not part of the request itself."""

json = msgspec.json.Encoder().encode


def routes() -> list[Route]:
    """The routes of the API."""
    return [
        Route(f"{PREFIX}/openapi.json", _openapi, methods=["GET"]),
        Route(f"{PREFIX}/session", _session, methods=["GET"]),
        *(Route(f"{PREFIX}{read.path}", _reader(read), methods=["GET"]) for read in READS),
        *(
            Route(f"{PREFIX}{action.path}", _actor(action), methods=["POST"])
            for action in ACTIONS.values()
        ),
    ]


def json_response(value: Any, status: int = 200) -> Response:
    """A value as JSON."""
    return Response(json(value), status_code=status, media_type="application/json")


async def _openapi(request: Request) -> Response:
    return json_response(document(request.scope.get("root_path", "").rstrip("/") + PREFIX))


async def _session(request: Request) -> Response:
    """Who makes the request, and the CSRF token for requests that change something."""
    view = view_of(request)
    shown = SessionShown(
        subject=view.principal.subject,
        tenant=view.tenant,
        scopes=tuple(sorted(view.principal.scopes)),
        read_only=view.read_only,
        hide_payloads=view.hide_payloads,
        csrf_token=request.state.csrf_token,
    )
    return with_csrf_cookie(request, json_response(shown))


def _reader(read: Read) -> Any:
    async def get(request: Request) -> Response:
        query = converted(dict(request.query_params), read.query)
        return json_response(await read.run(view_of(request), query))

    return get


def _actor(action: Action) -> Any:
    async def post(request: Request) -> Response:
        fields, is_form = await body_of(request)
        token = request.headers.get("x-csrf-token") or fields.get("csrf_token")
        request.state.gate.check_csrf(request, request.state.admission, token)
        done = await action.run(
            view_of(request), converted(fields, action.body, strict=not is_form)
        )
        if is_form and "hx-request" not in request.headers:
            return RedirectResponse(back(request, fields), status_code=303)
        return json_response(done)

    return post


def back(request: Request, fields: Mapping[str, Any]) -> str:
    """The page that a form was on: a path of this site, never another site."""
    path = str(fields.get("next") or "")
    root = str(request.scope.get("root_path", "")).rstrip("/") + "/"
    try:
        parts = urlsplit(path)
    except ValueError:  # such as `//[`
        return root
    own = path.startswith(root) and not path.startswith("//") and "\\" not in path
    return path if own and not parts.scheme and not parts.netloc else root


# ── what a request contains ───────────────────────────────────────────────────────────────────────


async def body_of(request: Request) -> tuple[dict[str, Any], bool]:
    """The fields of a request, and whether they came as a form."""
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > _MAX_BODY:
            raise PayloadTooLarge(f"the request is larger than {_MAX_BODY:,} bytes")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/json":
        try:
            found = msgspec.json.decode(bytes(data) or b"{}")
        except (msgspec.MsgspecError, ValueError, RecursionError) as e:
            raise InvalidJob(f"the request is not valid JSON: {e}") from None
        if not isinstance(found, dict):
            raise InvalidJob("the request must be a JSON object")
        return found, False
    if kind in ("application/x-www-form-urlencoded", ""):
        text = data.decode("utf-8", "replace")
        try:
            return dict(parse_qsl(text, max_num_fields=_MAX_FIELDS)), True
        except ValueError:
            raise InvalidJob(f"the form has more than {_MAX_FIELDS} fields") from None
    raise InvalidJob(f"the request is {kind}: send application/json")


_Asked = typing.TypeVar("_Asked", bound=Shape)


def converted(fields: Mapping[str, Any], type: type[_Asked], *, strict: bool = False) -> _Asked:
    """The fields as a record. InvalidJob names a field that is wrong, missing or unknown.

    Of a form or a query, empty fields count as not given, and numbers are texts.
    """
    known = type.__struct_fields__
    given = {
        name: _ticked(value, type, name)
        for name, value in fields.items()
        if name not in _NOT_FIELDS and (strict or value != "")
    }
    if unknown := [name for name in given if name not in known]:
        raise InvalidJob(f"unknown field {unknown[0]!r}: there are {', '.join(known) or 'none'}")
    for name, value in given.items():
        if isinstance(value, str) and "\0" in value:
            raise InvalidJob(f"{name} contains the character 0")
    try:
        return msgspec.convert(given, type, strict=strict)
    except msgspec.ValidationError as e:
        text, _, place = str(e).partition(" - at `$.")
        raise InvalidJob(f"{place.rstrip('`')}: {text}" if place else text) from None


def _ticked(value: Any, type: type[Shape], name: str) -> Any:
    """A checkbox of a form is `on`."""
    return "true" if value == "on" and "bool" in str(type.__annotations__.get(name)) else value
