"""Templates and addresses.

Templates are escaped always. They know these names:

- `url(name, **query)`: the address of a page, e.g. `url("job", tenant=t, queue=q, id=i)`
- `api(path, **query)`: the address of a call of the API, e.g. `api("queue/pause")`
- `live(**query)`: the address of a stream of server-sent events, see live.py
- `static(path)`: the address of a file below static/
- `may(action)`: whether the caller may do an action of `data.actions.ACTIONS`, e.g. `queue.pause`
- `view`: the View of the request, with `principal`, `read_only` and `hide_payloads`
- `csrf_token`: for a hidden field `csrf_token` of a form, or the header `X-CSRF-Token`
- `page_name`: the name of the page, for the navigation
- `path`: the path and query of the request, for the field `next` of a form without JavaScript
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from jobq.web.data.actions import ACTIONS
from jobq.web.data.view import View
from jobq.web.filters import FILTERS
from jobq.web.pages import PAGES

_PATHS = {page.name: page.path for page in PAGES} | {
    "sign_in": "/sign-in",
    "sign_out": "/sign-out",
    "payload": "/payload",  # tenant, queue, id, part: the download of a value
}

templates = Environment(
    loader=PackageLoader("jobq.web"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
templates.filters.update(FILTERS)


def view_of(request: Request) -> View:
    """What this request may see."""
    view: View = request.state.view
    return view


def url(request: Request, name: str, /, **query: object) -> str:
    """The address of a page. Values are percent-encoded once; None and "" are left out."""
    return _address(request, _PATHS[name], query)


def _address(request: Request, path: str, query: dict[str, object]) -> str:
    given = {key: _text(value) for key, value in query.items() if value not in (None, "", False)}
    prefix = request.scope.get("root_path", "").rstrip("/")
    return f"{prefix}{path}" + (f"?{urlencode(given)}" if given else "")


def _text(value: object) -> str:
    return "true" if value is True else str(value)


def render(request: Request, template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
    """A page or a part of one, from a template."""
    view = getattr(request.state, "view", None)
    path = request.url.path + (f"?{request.url.query}" if request.url.query else "")
    text = templates.get_template(template).render(
        url=lambda name, /, **query: url(request, name, **query),
        api=lambda path, /, **query: _address(request, f"/api/v1/{path}", query),
        live=lambda **query: _address(request, "/live", query),
        static=lambda path, /: _address(request, f"/static/{path}", {}),
        may=lambda action: view is not None and ACTIONS[action].allowed(view),
        view=view,
        csrf_token=getattr(request.state, "csrf_token", ""),
        page_name=getattr(request.state, "page_name", ""),
        path=path,
        **context,
    )
    return HTMLResponse(text, status_code=status)
