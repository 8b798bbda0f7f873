"""huey on SQLite, with the defaults of SqliteHuey: WAL, and a sync per commit.

Acknowledged jobs survive a power cut, as with jobq's `?synchronous=full`. The variant `nosync`
never syncs (fsync=False). It is the fastest, and less safe than jobq's default: a power cut may
damage the file.

Its consumer runs with threads and polls. The interval is 5 ms without backoff, because otherwise
request/response would only measure the interval.
"""

from __future__ import annotations

import json
import logging
import sys

from huey import SqliteHuey

from bench.adapter import PAYLOAD, RESULT, SyncAdapter, main, tick

COMMAND = json.loads(sys.argv[1])
fsync = False if COMMAND.get("variant") == "nosync" else None
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
            workers=concurrency,
            worker_type="thread",
            periodic=False,
            initial_delay=0.005,
            backoff=1.0,
            max_delay=0.005,
        ).run()


if __name__ == "__main__":
    main(Huey)
