"""The executor of functions that are not async."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

from jobq.executors.running import Running
from jobq.executors.thread import ThreadExecutor
from tests.waiting import wait_until

TIMEOUT_S = 10


def a_run() -> Any:
    return SimpleNamespace(check=lambda: None, unfinished=None)


async def test_a_call_that_is_cancelled_is_unfinished_until_its_thread_ends() -> None:
    executor, run, release = ThreadExecutor(asyncio.get_running_loop()), a_run(), threading.Event()
    began = threading.Event()

    def function() -> None:
        began.set()
        release.wait(TIMEOUT_S)

    call = asyncio.ensure_future(executor.call(cast(Running, run), function, (), {}))
    await asyncio.sleep(0)
    assert began.wait(TIMEOUT_S)
    call.cancel()
    await asyncio.wait({call}, timeout=TIMEOUT_S)
    assert call.cancelled()
    assert not run.unfinished.done()
    release.set()
    await asyncio.wait_for(run.unfinished, TIMEOUT_S)
    await executor.aclose()


async def test_a_call_that_ends_while_it_is_cancelled_is_finished() -> None:
    executor, run, release = ThreadExecutor(asyncio.get_running_loop()), a_run(), threading.Event()
    call = asyncio.ensure_future(executor.call(cast(Running, run), release.wait, (TIMEOUT_S,), {}))
    await asyncio.sleep(0)
    release.set()
    call.cancel()  # the call learns of it in the next iteration of the loop
    wait_until(lambda: executor._finished, "the end of the function")
    executor._collect()
    await asyncio.wait({call}, timeout=TIMEOUT_S)
    assert call.cancelled()
    assert run.unfinished is None, "nothing would ever end it, and its slot would be lost"
    await executor.aclose()
