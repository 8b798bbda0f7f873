"""RQ with its fastest worker, SimpleWorker (no fork per job), and JSON.

A process runs one job at a time, so only concurrency 1 is measured."""

from __future__ import annotations

import logging

from redis import Redis
from rq import Queue, SimpleWorker
from rq.serializers import JSONSerializer

from bench.adapter import PAYLOAD, RESULT, SyncAdapter, Unsupported, chunks, counter, main, tick


def noop(payload: str) -> int:
    tick()
    return RESULT


NOOP = "bench.peers.rq.noop"


class Rq(SyncAdapter):
    packages = ("rq", "redis", "hiredis")

    def open(self) -> None:
        self.redis = Redis.from_url(self.url)
        self.queue = Queue("bench", connection=self.redis, serializer=JSONSerializer)

    def enqueue(self) -> object:
        return self.queue.enqueue(NOOP, PAYLOAD)

    def bulk(self, n: int) -> None:
        for size in chunks(n, 1000):
            self.queue.enqueue_many(
                [Queue.prepare_data(NOOP, args=(PAYLOAD,)) for _ in range(size)]
            )

    def request(self) -> object:
        return self.queue.enqueue(NOOP, PAYLOAD).latest_result(timeout=30)

    def work(self, concurrency: int) -> None:
        if (
            concurrency > 1 and counter.target
        ):  # a drain; request/response works with any concurrency
            raise Unsupported("one job at a time per process")
        logging.getLogger("rq").setLevel(logging.ERROR)
        SimpleWorker([self.queue], connection=self.redis, serializer=JSONSerializer).work(
            logging_level="ERROR"
        )


if __name__ == "__main__":
    main(Rq)
