"""Live updates as server-sent events.

`GET /live` sends, until the tab is closed:

- `/live?tenant=&queue=`: `event: queue` with a QueueLive as JSON whenever the queue changes, at
  most once per second.
- `/live?tenant=` or `/live`: the same for each of the first 50 queues of the overview.
- `/live?tenant=&queue=&id=`: `event: job` with a JobLive as JSON whenever the job changes, and
  `event: end` after the last one.
- `/live?workers=true`: `event: workers` whenever a worker has come, gone or changed. The page then
  reads what its reader may see.

All tabs that watch the same queue or job share one reader of the store (feeds.py). A comment is
sent every 15 seconds, so that proxies keep the connection open.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from jobq.core.records import JobKey, QueueName
from jobq.errors import AccessDenied, JobqError, QuotaExceeded
from jobq.operations import listing
from jobq.web.data.job import record_of
from jobq.web.data.queues import MAX_ROWS
from jobq.web.data.view import View
from jobq.web.feeds import WORKERS, Hub, Message, Watched
from jobq.web.render import view_of

HEARTBEAT_S = 15.0
"""Seconds between two comments. Proxies close connections that are silent for 30 to 60 seconds."""
MAX_TABS = 1_000
"""Streams that one process keeps open."""


async def live(request: Request) -> Response:
    """A stream of what changes. Refused like the page that it belongs to."""
    hub: Hub = request.state.hub
    if hub.tabs >= MAX_TABS:
        raise QuotaExceeded(f"{MAX_TABS:,} live pages are open: close some of them")
    names = await _names(request, view_of(request))
    return StreamingResponse(
        _stream(request, hub, names),
        media_type="text/event-stream",
        headers={"X-Accel-Buffering": "no"},  # nginx would collect events otherwise
    )


async def _names(request: Request, view: View) -> Sequence[Watched]:
    """What to watch. JobNotFound if it does not exist, or belongs to another tenant."""
    query = request.query_params
    if query.get("workers"):
        if not view.may("workers"):
            raise AccessDenied("live updates of workers need the scope read")
        return [WORKERS]
    tenant, queue, id = (query.get(name) or None for name in ("tenant", "queue", "id"))
    if tenant and queue and id:
        record = await record_of(view, tenant, queue, id)
        return [JobKey(record.queue, record.id)]
    if tenant and queue:
        await view.store.stats(QueueName(tenant, queue))
        return [QueueName(tenant, queue)]
    return [record.queue for record in (await listing.queues(view.store, tenant))[:MAX_ROWS]]


async def _stream(request: Request, hub: Hub, names: Sequence[Watched]) -> AsyncIterator[bytes]:
    yield b"retry: 3000\n\n"
    if hub.tabs >= MAX_TABS:
        return  # many came at once: all were let in before the first of them was counted
    checked = time.monotonic()
    async with hub.watching(names) as tab:
        while not tab.closed:
            messages = await tab.next(HEARTBEAT_S)
            for message in messages:
                yield _bytes(message)
                if message.event == "end":
                    return
            if not messages:
                yield b": still here\n\n"
            if time.monotonic() - checked >= HEARTBEAT_S:
                checked = time.monotonic()
                if not await _still_admitted(request):
                    return


async def _still_admitted(request: Request) -> bool:
    """Whether the reader may still see it: a stream must not outlive a session, a token, or what
    they allowed."""
    try:
        now = await request.state.gate.admit(request)
    except JobqError:
        return False
    before = request.state.admission.principal
    if now is None or (before.expires_s is not None and time.time() >= before.expires_s):
        return False
    # With other rights, the browser connects again and gets what they allow.
    return bool(now.principal.tenant == before.tenant and now.principal.scopes == before.scopes)


def _bytes(message: Message) -> bytes:
    # JSON has no line breaks outside of strings, and escapes those inside.
    return b"event: %s\ndata: %s\n\n" % (message.event.encode(), message.data)
