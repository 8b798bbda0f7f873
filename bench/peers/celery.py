"""Celery with a Redis broker and result backend.

One worker process with a pool of threads (`solo` at concurrency 1), without gossip, mingle,
heartbeat and events. The prefetch is what its optimizing guide recommends for short tasks."""

from __future__ import annotations

import json
import sys

from celery import Celery

from bench.adapter import PAYLOAD, RESULT, SyncAdapter, main, tick

URL = json.loads(sys.argv[1])["url"]
app = Celery("bench", broker=URL, backend=URL)
app.conf.update(
    worker_prefetch_multiplier=64,
    worker_hijack_root_logger=False,
    task_ignore_result=False,
    broker_connection_retry_on_startup=True,
    broker_pool_limit=10,
)


@app.task(name="noop")
def noop(payload: str) -> int:
    tick()
    return RESULT


class CeleryPeer(SyncAdapter):
    packages = ("celery", "kombu", "redis", "hiredis")

    def enqueue(self) -> object:
        return noop.delay(PAYLOAD)

    def request(self) -> object:
        return noop.delay(PAYLOAD).get(timeout=30)

    def work(self, concurrency: int) -> None:
        pool = (
            ["--pool=solo"]
            if concurrency == 1
            else ["--pool=threads", f"--concurrency={concurrency}"]
        )
        app.worker_main(
            [
                "worker",
                *pool,
                "--loglevel=WARNING",
                "--without-gossip",
                "--without-mingle",
                "--without-heartbeat",
            ]
        )


if __name__ == "__main__":
    main(CeleryPeer)
