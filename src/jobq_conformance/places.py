"""The stores that the suite runs on. A conftest.py registers them before the suite is collected.

Register each store with `@place("name")` on a generator that is entered once per test session:

    @place("valkey")
    def valkey(tmp: Path) -> Iterator[Fresh]:
        with running_server(tmp) as url:  # raise Unavailable("apt install …") if there is none
            yield lambda: at(url)         # called for each test; must be empty and not shared

`Fresh` returns an `Opening`. Called with a clock, that returns a handle; called again, another
handle on the same place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from jobq.stores import open_store
from jobq.stores.base import Clock, Store

Opening = Callable[[Clock], Store]
Fresh = Callable[[], Opening]
Place = Callable[[Path], Iterator[Fresh]]

PLACES: dict[str, Place] = {}
DEFAULT_PLACES: list[str] = []
"""The names that a run without `--store` uses."""


class Unavailable(Exception):
    """The store cannot run on this machine. The message says what to install."""


def place(name: str, *, default: bool = True) -> Callable[[Place], Place]:
    """Register a kind of store under `name`. Without `default`, only `--store name` runs it."""

    def register(function: Place) -> Place:
        PLACES[name] = function
        if default:
            DEFAULT_PLACES.append(name)
        return function

    return register


def at(url: str) -> Opening:
    """Opens handles on the store at `url`."""
    return lambda clock: open_store(url, clock=clock)
