"""The event loop of jq-worker and jq-server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any


def run_in_loop(work: Coroutine[Any, Any, None]) -> None:
    """Run the coroutine on uvloop if it is installed, otherwise on asyncio's event loop."""
    try:
        import uvloop
    except ImportError:
        run: Callable[[Coroutine[Any, Any, None]], None] = asyncio.run
    else:
        run = uvloop.run
    # Not inside the `except`: the ImportError would be the context of every error in a handler.
    run(work)
