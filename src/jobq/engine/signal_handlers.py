"""Catches SIGTERM and SIGINT while a worker runs, and restores the handlers afterwards."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def signals_caught(
    notify: Callable[[signal.Signals], None], *, last: bool = False
) -> Iterator[None]:
    """Call `notify` in the running event loop for each SIGTERM and SIGINT while the context lasts.

    Does nothing outside the main thread, where signals cannot be caught. With `last`, the process
    is about to exit, so signals that arrive after the context are ignored: the default action would
    turn an orderly exit into a death by signal. A context that ends with an error restores the
    handlers in any case.
    """
    loop = asyncio.get_running_loop()
    numbers: list[signal.Signals] = []
    for number in _SIGNALS:
        try:
            loop.add_signal_handler(number, notify, number)
            numbers.append(number)
        except (NotImplementedError, RuntimeError, ValueError):
            break
    orderly = False
    try:
        yield
        orderly = True
    finally:
        if last and orderly and numbers:
            _ignore(loop, numbers)
        else:
            for number in numbers:
                loop.remove_signal_handler(number)


def _ignore(loop: asyncio.AbstractEventLoop, numbers: list[signal.Signals]) -> None:
    """Ignore these signals from now on.

    Removing the loop's handler restores the default action for a moment, so signals are blocked
    until they are ignored.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_IGN)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)
