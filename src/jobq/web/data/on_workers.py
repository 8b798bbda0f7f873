"""Actions on workers. A worker receives a request in its next heartbeat."""

from __future__ import annotations

import logging

from jobq.core.records.workers import MAX_CONCURRENCY, WorkerRequest, concurrency_request
from jobq.core.values.checks import check_int
from jobq.operations import workers
from jobq.web.data.bodies import ConcurrencyBody, Done, WorkerBody
from jobq.web.data.view import View

log = logging.getLogger("jobq.web")


async def drain(view: View, body: WorkerBody) -> Done:
    """Let a worker finish its running jobs and claim no more, until it is resumed."""
    return await _ask(view, body, "drain", "drain")


async def resume(view: View, body: WorkerBody) -> Done:
    """Let a draining worker claim jobs again."""
    return await _ask(view, body, "resume", "resume")


async def stop(view: View, body: WorkerBody) -> Done:
    """Let a worker finish its running jobs and stop."""
    return await _ask(view, body, "shutdown", "stop")


async def stop_now(view: View, body: WorkerBody) -> Done:
    """Let a worker release its running jobs and stop."""
    return await _ask(view, body, "shutdown-now", "stop now")


async def concurrency(view: View, body: ConcurrencyBody) -> Done:
    """Change how many jobs a worker runs at once."""
    number = check_int(body.concurrency, "concurrency", low=1, high=MAX_CONCURRENCY)
    return await _ask(view, body, concurrency_request(number), f"run up to {number} jobs at once")


async def _ask(view: View, body: WorkerBody, request: WorkerRequest, what: str) -> Done:
    await workers.ask(view.store, body.name, request)
    # A worker belongs to no queue, so no event log has these requests.
    log.info("%s asked worker %r to %s", view.principal.subject or "someone", body.name, what)
    return Done(changed=1, message=f"Asked {body.name} to {what}.")
