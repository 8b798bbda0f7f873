"""A FastAPI application: reports are jobs, and the browser follows their progress.

uvicorn fastapi_app:app --timeout-graceful-shutdown 5
jq-worker --app fastapi_app:reports
"""

import asyncio
from collections.abc import AsyncIterator

from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

from jobq import JobqError, Queue, Reject, current_job
from jobq.http import error_reply, job_events, job_reply, queues_lifespan

reports = Queue("reports")  # at JQ_URL
app = FastAPI(lifespan=queues_lifespan(reports))


class Order(BaseModel):
    title: str
    pages: int


@reports.task(timeout=60)
async def build(order: Order) -> str:
    if order.pages < 1:
        raise Reject("a report has at least one page")
    job = current_job()
    for page in range(1, order.pages + 1):
        await asyncio.sleep(0.05)  # the work
        await job.progress({"page": page, "of": order.pages})
        await job.log(f"page {page} is ready")
    return f"{order.title}, {order.pages} pages"


@app.exception_handler(JobqError)
async def jobq_error(request: Request, error: JobqError) -> Response:
    return Response(*error_reply(error))


@app.post("/reports")
async def create(order: Order) -> Response:
    job = await build.enqueue(order)
    return Response(*await job_reply(job, location=f"/reports/{job.id}"))


@app.get("/reports/{id}")
async def show(id: str, wait: float = 0) -> Response:
    return Response(*await job_reply(reports.job(id), timeout=min(wait, 30)))


@app.get("/reports/{id}/events")
async def events(id: str) -> StreamingResponse:
    stream: AsyncIterator[bytes] = await job_events(reports.job(id))
    return StreamingResponse(stream, media_type="text/event-stream")


@app.post("/reports/now")
async def now(order: Order) -> str:
    return await build.options(call_timeout=20).call(order)


PAGE = r"""<!doctype html>
<title>A report</title>
<pre id="log"></pre>
<script>
    const log = document.getElementById("log");
    const source = new EventSource(`/reports/${location.hash.slice(1)}/events`);
    source.onopen = () => { log.textContent = ""; };  // all lines come again
    const show = (event) => { log.append(event.data, "\n"); };
    source.addEventListener("update", show);
    source.addEventListener("end", (event) => { show(event); source.close(); });
</script>
"""


@app.get("/")
async def page() -> Response:
    return Response(PAGE, media_type="text/html")
