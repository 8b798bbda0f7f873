"""huey on SQLite: WAL, no fsync (its fastest; less safe than jobq's default), its own consumer with threads.
The variant `fsync` is its default, a sync per commit, which compares with jobq's `?synchronous=full`.

Its consumer polls; 5 ms without backoff keeps request/response from measuring the poll alone.
"""

from __future__ import annotations

import json
import logging
import sys

from huey import SqliteHuey

from bench.adapter import PAYLOAD, RESULT, SyncAdapter, main, tick

COMMAND = json.loads(sys.argv[1])
fsync = None if COMMAND.get("variant") == "fsync" else False
huey = SqliteHuey("bench", filename=COMMAND["url"], fsync=fsync, cache_mb=64, timeout=60)
logging.getLogger("huey").setLevel(logging.WARNING)


@huey.task()
def noop(payload: str) -> int:
    tick()
    return RESULT


class Huey(SyncAdapter):
    packages = ("huey",)

    def enqueue(self) -> object:
        return noop(PAYLOAD)

    def request(self) -> object:
        return noop(PAYLOAD).get(blocking=True, timeout=30, backoff=1.0, max_delay=0.001)

    def work(self, concurrency: int) -> None:
        huey.create_consumer(
            workers=concurrency, worker_type="thread", periodic=False, initial_delay=0.005, backoff=1.0, max_delay=0.005
        ).run()


if __name__ == "__main__":
    main(Huey)
