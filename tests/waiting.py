"""How tests wait. Every real pause of a test goes through this module and says what it is for.

A test waits for an event, a fake clock or a result wherever there is one. These helpers are for the
rest: another process, a server or a thread that sends no signal. `scripts/sleeps.py` refuses any
other `sleep` in a test.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

PATIENCE_S = 30.0
"""How long a wait may take before the test fails. Far longer than needed on a loaded machine."""

_LOOK_S = 0.01
"""The pause between two looks: short enough for the test, long enough for what is waited for."""


async def until(
    condition: Callable[[], Any | Awaitable[Any]], what: str, *, seconds: float = PATIENCE_S
) -> Any:
    """Return the condition's first true value. The test fails with `what` after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        found = condition()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        assert time.monotonic() < end, f"waited {seconds:g} s for {what}"
        await asyncio.sleep(_LOOK_S)


def wait_until(condition: Callable[[], Any], what: str, *, seconds: float = PATIENCE_S) -> Any:
    """Return the condition's first true value. The test fails with `what` after `seconds`."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, f"waited {seconds:g} s for {what}"
        time.sleep(_LOOK_S)
    return found


async def until_it_succeeds(
    act: Callable[[], Awaitable[Any]],
    error: type[Exception],
    what: str,
    *,
    seconds: float = PATIENCE_S,
) -> Any:
    """Repeat `act` while it raises `error`, and return its value."""
    end = time.monotonic() + seconds
    while True:
        try:
            return await act()
        except error:
            assert time.monotonic() < end, f"waited {seconds:g} s for {what}"
            await asyncio.sleep(_LOOK_S)


async def takes(seconds: float) -> None:
    """The work of a handler that takes this long, or the pause of a load between two actions."""
    await asyncio.sleep(seconds)


def blocks(seconds: float) -> None:
    """The work of a handler that blocks its thread for this long."""
    time.sleep(seconds)


async def forever() -> None:
    """The work of a handler that never ends by itself."""
    await asyncio.Event().wait()


async def nothing_happens(seconds: float, why: str) -> None:
    """Give something that must not happen this long to happen. `why` says what would show it."""
    del why
    await asyncio.sleep(seconds)
