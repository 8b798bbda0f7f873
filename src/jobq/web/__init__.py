"""`jobq[web]`: a dashboard as an ASGI application. docs/guide/dashboard.md shows how to use it.

app.mount("/jobs", jobq.web.app("postgresql://…", sign_in=staff))
"""

from __future__ import annotations

from jobq.errors import ConfigError

try:
    import jinja2 as _jinja2  # noqa: F401
    import starlette as _starlette  # noqa: F401
except ImportError as e:
    raise ConfigError(f"jobq.web needs {e.name}: pip install 'jobq[web]'") from e

from jobq.access.principal import Principal
from jobq.stores.base import Store
from jobq.web.signing_in import HostAuth, everyone
from jobq.web.site import Dashboard
from jobq.web.tokens import Authenticator, TokenFile

__all__ = ["Authenticator", "Dashboard", "HostAuth", "Principal", "TokenFile", "app", "everyone"]


def app(
    store: str | Store,
    *,
    sign_in: Authenticator | HostAuth | None = None,
    read_only: bool = False,
    hide_payloads: bool = False,
    secret: str | None = None,
) -> Dashboard:
    """The dashboard of a store, to be served or mounted: `app.mount("/jobs", jobq.web.app(url))`.

    `store` is a URL, or an open store of the event loop that serves the dashboard.

    `sign_in` says who may use it. A `TokenFile` lets people sign in with a token of that file. A
    function gets each request (of Starlette) and returns a `Principal`, or None for a visitor who
    may not see the dashboard; it may be async. The default serves only browsers on this machine,
    and lets them do everything. `everyone` does the same for everybody who reaches it.

    `read_only` refuses every action. `hide_payloads` hides arguments, results, progress, log lines
    and messages of errors. `secret` signs the cookies: give the same one to all processes that
    serve the dashboard, or people sign in again when another process replies.
    """
    return Dashboard(
        store, sign_in=sign_in, read_only=read_only, hide_payloads=hide_payloads, secret=secret
    )
