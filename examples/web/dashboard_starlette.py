"""The dashboard inside a Starlette application. People sign in with a token of a file.

uvicorn dashboard_starlette:app
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.routing import Mount

import jobq.web
from jobq.web import TokenFile

dashboard = jobq.web.app(
    os.environ.get("JQ_URL", "sqlite:///jobq.db"),
    sign_in=TokenFile(os.environ.get("TOKENS_FILE", "tokens.txt")),
    hide_payloads=True,
    secret=os.environ.get("JQ_WEB_SECRET"),  # the same for all processes of the application
)


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with dashboard:
        yield


app = Starlette(routes=[Mount("/jobs", app=dashboard)], lifespan=lifespan)
