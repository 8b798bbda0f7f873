"""An application whose process waits at exit for a file `gone` in the folder JQ_TEST_FOLDER."""

import atexit
import os
import time
from pathlib import Path

from jobq import Queue

shop = Queue("shop")
folder = Path(os.environ["JQ_TEST_FOLDER"])


@shop.task
async def add(a: int, b: int) -> int:
    return a + b


@atexit.register
def wait() -> None:
    (folder / "ending").touch()
    while not (folder / "gone").exists():
        time.sleep(0.01)
