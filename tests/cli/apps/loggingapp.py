"""An application that configures logging itself."""

import logging

from jobq import Queue

logging.basicConfig(format="OURS %(levelname)s %(message)s", level=logging.INFO)

shop = Queue("shop")


@shop.task
async def add(a: int, b: int) -> int:
    return a + b
