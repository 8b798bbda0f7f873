"""taskiq with the broker of its quick start: Redis streams, with acknowledgement.

The variant `list` uses the list broker, which does not acknowledge. Results are stored."""

from __future__ import annotations

import json
import sys

from taskiq.api import run_receiver_task
from taskiq_redis import ListQueueBroker, RedisAsyncResultBackend, RedisStreamBroker

from bench.adapter import PAYLOAD, RESULT, AsyncAdapter, main, tick

COMMAND = json.loads(sys.argv[1])
URL = COMMAND["url"]
# "0" is the start of the stream. The default, "$", would skip jobs sent before the worker started.
broker = (
    ListQueueBroker(URL)
    if COMMAND.get("variant") == "list"
    else RedisStreamBroker(URL, consumer_id="0")
)
broker = broker.with_result_backend(RedisAsyncResultBackend(URL, result_ex_time=3600))


@broker.task(task_name="noop")
async def noop(payload: str) -> int:
    tick()
    return RESULT


class Taskiq(AsyncAdapter):
    packages = ("taskiq", "taskiq-redis", "redis", "hiredis")

    async def open(self) -> None:
        if COMMAND["do"] == "work":
            broker.is_worker_process = True
        await broker.startup()

    async def close(self) -> None:
        await broker.shutdown()

    async def enqueue(self) -> object:
        return await noop.kiq(PAYLOAD)

    async def request(self) -> object:
        task = await noop.kiq(PAYLOAD)
        return await task.wait_result(check_interval=0.001, timeout=30)

    async def work(self, concurrency: int) -> None:
        await run_receiver_task(broker, max_async_tasks=concurrency, max_prefetch=concurrency)


if __name__ == "__main__":
    main(Taskiq)
