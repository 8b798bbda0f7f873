"""The project as an ASGI application, with the dashboard under /jobs/ for staff.

uvicorn mysite.asgi:application
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "mysite.settings")
pages = get_asgi_application()

from django.conf import settings  # noqa: E402 (after Django is set up)
from django.contrib.auth import aget_user  # noqa: E402
from django.http import HttpRequest  # noqa: E402
from orders.jobs import emails  # noqa: E402
from starlette.requests import Request  # noqa: E402

import jobq.web  # noqa: E402
from jobq.web import Principal  # noqa: E402


async def staff(request: Request) -> Principal | None:
    seen = HttpRequest()
    sessions = import_module(settings.SESSION_ENGINE)
    seen.session = sessions.SessionStore(request.cookies.get(settings.SESSION_COOKIE_NAME))
    user = await aget_user(seen)
    if not (user.is_active and user.is_staff):
        return None
    return Principal(
        subject=user.get_username(),
        tenant=None,
        scopes=frozenset({"admin"} if user.is_superuser else {"read"}),
    )


dashboard = jobq.web.app(emails.url, sign_in=staff)


async def application(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http" and scope["path"].startswith("/jobs/"):
        await dashboard({**scope, "root_path": "/jobs"}, receive, send)
    else:
        await pages(scope, receive, send)
