"""The dashboard inside a FastAPI application, for the application's own users.

uvicorn dashboard_fastapi:app
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.requests import Request

import jobq.web
from jobq.web import Principal

SESSIONS = {"7f3c": "ada", "91b2": "bob"}  # what your application knows of its users


async def user_of(request: Request) -> Principal | None:
    name = SESSIONS.get(request.cookies.get("session", ""))
    if name is None:
        return None  # the dashboard replies with 401
    return Principal(
        subject=name, tenant=None, scopes=frozenset({"admin"} if name == "ada" else {"read"})
    )


dashboard = jobq.web.app(os.environ.get("JQ_URL", "sqlite:///jobq.db"), sign_in=user_of)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with dashboard:  # connects to the store, and closes it at the end
        yield


app = FastAPI(lifespan=lifespan)
app.mount("/jobs", dashboard)
