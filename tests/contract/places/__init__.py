"""Where the suite can keep jobs: one module per kind of store, found by being here.

A module registers each of its stores with `@place("name")` on a generator that is entered once per test session:

    @place("valkey")
    def valkey(tmp: Path) -> Iterator[Fresh]:
        with running_server(tmp) as url:       # raise Unavailable("apt install …") if there is none
            yield lambda: at(url)              # called for each test; must be empty and shared with no other test

`Fresh` answers an `Opening`: called with a clock it gives a handle, called again another handle on the same place.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

from jobq.stores import open_store
from jobq.stores.base import Clock, Store

Opening = Callable[[Clock], Store]
Fresh = Callable[[], Opening]
Place = Callable[[Path], Iterator[Fresh]]

PLACES: dict[str, Place] = {}


class Unavailable(Exception):
    """This store cannot run here; the message says what to install."""


def place(name: str) -> Callable[[Place], Place]:
    """Register a kind of store under `name`."""

    def register(function: Place) -> Place:
        PLACES[name] = function
        return function

    return register


def at(url: str) -> Opening:
    """Handles on the store at `url`."""
    return lambda clock: open_store(url, clock=clock)


def load() -> dict[str, Place]:
    """All places, with the modules of this package imported."""
    for module in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return PLACES
