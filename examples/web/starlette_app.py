"""A Starlette application that runs its own worker: one process serves requests and runs jobs.

uvicorn starlette_app:app --timeout-graceful-shutdown 5
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from jobq import JobqError, Queue, Worker, current_job
from jobq.http import error_reply, job_events, job_reply, queues_lifespan

thumbnails = Queue("thumbnails")


@thumbnails.task
async def shrink(image: str) -> str:
    for percent in (25, 50, 75, 100):
        await asyncio.sleep(0.05)  # the work
        await current_job().progress(percent)
    return f"small-{image}"


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with queues_lifespan(thumbnails)(app), Worker(thumbnails, concurrency=4, drain=5):
        yield


async def create(request: Request) -> Response:
    owner = request.headers["x-user"]
    job = await shrink.options(meta={"owner": owner}).enqueue(request.path_params["image"])
    return Response(*await job_reply(job, location=f"/jobs/{job.id}"))


async def show(request: Request) -> Response:
    job = thumbnails.job(request.path_params["id"])
    if (await job.info()).meta.get("owner") != request.headers["x-user"]:
        raise HTTPException(404)  # as for a job that does not exist
    return Response(*await job_reply(job, timeout=10))


async def events(request: Request) -> Response:
    stream = await job_events(thumbnails.job(request.path_params["id"]))
    return StreamingResponse(stream, media_type="text/event-stream")


async def jobq_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, JobqError)
    return Response(*error_reply(error))


app = Starlette(
    routes=[
        Route("/thumbnails/{image}", create, methods=["POST"]),
        Route("/jobs/{id}", show),
        Route("/jobs/{id}/events", events),
    ],
    exception_handlers={JobqError: jobq_error},
    lifespan=lifespan,
)
