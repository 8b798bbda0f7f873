"""Workers for test_complete_in.py: started and killed in a process without threads of its own.

Arguments: the store, the database, how many kills. Prints `killed N` after the last one.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from functools import partial

import psycopg

from jobq import Queue, Worker, current_job
from tests.stores.postgres.servers import ask
from tests.waiting import blocks, takes, wait_until

LEASE_S = 1.0
WORKERS = 2


def define(store: str, database: str) -> Queue:
    queue = Queue("work", store)

    @queue.task(max_stalls=10_000, retry=10_000)
    async def work(n: int) -> None:
        """One effect, between random pauses, so that kills hit every step."""
        async with await psycopg.AsyncConnection.connect(database) as conn:
            await takes(random.random() * 0.01)
            await conn.execute("insert into effects values (%s)", [n])
            await takes(random.random() * 0.01)
            await current_job().complete_in(conn)
            await takes(random.random() * 0.02)
            await conn.commit()
            await takes(random.random() * 0.01)

    return queue


def worker(store: str, database: str) -> int:
    """Start a worker process, and return its id."""
    pid = os.fork()
    if pid == 0:
        queue = define(store, database)
        asyncio.run(Worker(queue, concurrency=8, lease=LEASE_S).run())
        os._exit(0)
    return pid


def effects(database: str, wanted: int) -> int:
    """How many effects there are; 0 while they are fewer than wanted."""
    ((found,),) = ask(database, "select count(*) from effects")
    return int(found) if found >= wanted else 0


def main(store: str, database: str, kills: int) -> None:
    workers = [worker(store, database) for _ in range(WORKERS)]
    seen = 0
    for _ in range(kills):
        wanted = seen + random.randrange(1, 20)
        seen = wait_until(partial(effects, database, wanted), "effects since the last kill")
        blocks(random.random() * 0.05)
        victim = workers.pop(random.randrange(len(workers)))
        os.kill(victim, signal.SIGKILL)
        os.waitpid(victim, 0)
        workers.append(worker(store, database))
    sys.stdout.write(f"killed {kills}\n")
    sys.stdout.flush()
    sys.stdin.read()  # until the test closes it
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
