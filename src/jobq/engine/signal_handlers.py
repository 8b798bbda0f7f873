"""SIGTERM and SIGINT for a worker: caught while it runs, and given back when it has stopped."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def signals_caught(told: Callable[[signal.Signals], None], *, last: bool = False) -> Iterator[None]:
    """Call `told` in the running event loop for each signal, while the context lasts.

    Only where signals can be caught (the main thread). `last`: the process ends after this, so a signal that arrives later
    is ignored. With the default action it would turn an orderly exit into a death by that signal."""
    loop = asyncio.get_running_loop()
    numbers: list[signal.Signals] = []
    for number in _SIGNALS:
        try:
            loop.add_signal_handler(number, told, number)
            numbers.append(number)
        except (NotImplementedError, RuntimeError, ValueError):
            break
    try:
        yield
    finally:
        if last and numbers:
            _ignore(loop, numbers)
        else:
            for number in numbers:
                loop.remove_signal_handler(number)


def _ignore(loop: asyncio.AbstractEventLoop, numbers: list[signal.Signals]) -> None:
    """Removing the loop's handler restores the default action for a moment. Blocked signals wait until that is over."""
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
