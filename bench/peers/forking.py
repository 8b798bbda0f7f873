"""Workers that run jobs in child processes: `forking.py PEER URL FOLDER (JOBS | work)`.

PEER is celery (prefork, with the prefetch that its guide recommends for short tasks), rq (its
default worker, which forks for each job) or jobq (executor="process"). With a number it enqueues
that many jobs. With `work` it runs a worker with two processes until it is killed. Each handler
counts its calls in FOLDER.
"""

from __future__ import annotations

import asyncio
import importlib
import sys

from bench.ticks import Ticks

PEER, URL, FOLDER = sys.argv[1:4] if len(sys.argv) > 3 else ("", "", "")
PROCESSES = 2


def celery(what: str) -> None:
    from celery import Celery

    app = Celery("forking", broker=URL, backend=URL)
    app.conf.update(worker_prefetch_multiplier=64, worker_hijack_root_logger=False)
    ticks = Ticks(FOLDER)

    @app.task(name="noop")
    def noop(n: int) -> int:
        ticks.tick()
        return n

    if what == "work":
        options = "--loglevel=WARNING --without-gossip --without-mingle --without-heartbeat"
        app.worker_main(
            ["worker", "--pool=prefork", f"--concurrency={PROCESSES}", *options.split()]
        )
    else:
        for n in range(int(what)):
            noop.delay(n)


def rq(what: str) -> None:
    from redis import Redis
    from rq import Queue
    from rq.worker_pool import WorkerPool

    queue = Queue("forking", connection=Redis.from_url(URL))
    if what == "work":
        WorkerPool([queue], connection=queue.connection, num_workers=PROCESSES).start(
            logging_level="ERROR"
        )
    else:
        for n in range(int(what)):
            queue.enqueue("bench.peers.forking_rq.noop", FOLDER, n)


def jobq(what: str) -> None:
    app = importlib.import_module("bench.peers.forking_jobq")
    asyncio.run(app.main(URL, FOLDER, what, PROCESSES))


if __name__ == "__main__":
    {"celery": celery, "rq": rq, "jobq": jobq}[PEER](sys.argv[4])
