"""The queues of the application, and what its workers open."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from jobq import Queue

from . import billing, mail

# Without a URL: the store is that of JQ_URL when the queue is opened.
payments = Queue("payments", defaults={"timeout": 30, "result_ttl": 3600})
mails = Queue("mails", defaults={"retry": 10})

payments.include(billing.tasks)
mails.include(mail.tasks)


@asynccontextmanager
async def lifespan() -> AsyncIterator[None]:
    yield  # open what all jobs need before this line, and close it after
