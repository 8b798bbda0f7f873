"""dramatiq with its Redis broker and result backend: one process with threads, prefetch 100."""

from __future__ import annotations

import json
import os
import sys
import threading

os.environ["dramatiq_queue_prefetch"] = (
    "100"  # with the default, 2 per thread, threads are idle between fetches
)

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend

from bench.adapter import PAYLOAD, RESULT, SyncAdapter, main, tick

URL = json.loads(sys.argv[1])["url"]
broker = RedisBroker(url=URL)
broker.add_middleware(Results(backend=RedisBackend(url=URL)))
dramatiq.set_broker(broker)


@dramatiq.actor(store_results=True, max_retries=0)
def noop(payload: str) -> int:
    tick()
    return RESULT


class Dramatiq(SyncAdapter):
    packages = ("dramatiq", "redis", "hiredis")

    def enqueue(self) -> object:
        return noop.send(PAYLOAD)

    def request(self) -> object:
        return noop.send(PAYLOAD).get_result(block=True, timeout=30_000)

    def work(self, concurrency: int) -> None:
        dramatiq.Worker(broker, worker_threads=concurrency).start()
        threading.Event().wait()


if __name__ == "__main__":
    main(Dramatiq)
