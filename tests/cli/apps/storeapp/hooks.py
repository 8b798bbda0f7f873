"""What `jq-worker --lifespan` and `--middleware` name."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from jobq import CallNext, CurrentJob

log = logging.getLogger("jobq.storeapp")


@asynccontextmanager
async def lifespan() -> AsyncIterator[str]:
    log.info("the lifespan begins")
    yield "value"
    log.info("the lifespan ends")


async def prints(job: CurrentJob, call_next: CallNext) -> object:
    result = await call_next(job)
    log.info("%s with %s returned %s", job.name, job.lifespan(str), result)
    return result
