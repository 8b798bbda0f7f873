"""Tasks that run in child processes and print what their log lines tell about their job."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from typing import Any

import structlog

from jobq import Queue, Snooze, current_job, logs

queue = Queue("apart", "memory://")
log = logging.getLogger("app")


class _Fields(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        have = vars(record)
        return json.dumps({name: have[name] for name in logs.FIELDS if name in have})


@queue.task(executor="process")
def tell() -> dict[str, Any]:
    """Log one line with each library. What is printed becomes the job's log."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_Fields())
    logs.install(handler)
    log.addHandler(handler)
    log.warning("hello")
    return dict(logs.add_job(None, "info", {"event": "hello"}))


@queue.task(executor="process")
async def tell_from_a_loop() -> dict[str, Any]:
    """The same in an event loop, with structlog as an application configures it."""
    structlog.configure(
        processors=[logs.add_job, structlog.processors.JSONRenderer()],
        logger_factory=structlog.PrintLoggerFactory(),
    )
    structlog.get_logger().info("hello")
    return logs.job_fields()


failing = Queue("failing", "memory://")


@failing.task(executor="process", retry=0)
def fail_apart() -> None:
    """Fail in a child process."""
    raise ValueError("no such tenant")


@failing.task(executor="process", retry=0, timeout=0.2, grace=0.2)
def hang_apart() -> None:
    """Go on until the process is killed."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    threading.Event().wait(60)


@failing.task(executor="process", retry=0)
def die_apart() -> None:
    """End the process in the middle of the job."""
    os.kill(os.getpid(), signal.SIGKILL)


@failing.task(executor="process")
def snooze_apart() -> None:
    """Ask to run again, once."""
    if current_job().attempt == 1:
        raise Snooze(0)
