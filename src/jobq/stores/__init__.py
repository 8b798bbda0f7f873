"""`open_store(url)`: from an address to a store. Drivers are imported when their scheme is asked for."""

from __future__ import annotations

from importlib import import_module

from jobq.errors import ConfigError
from jobq.stores.base import Clock, Store

# scheme → (module with `open(url, clock)`, extra that brings its driver)
_SCHEMES: dict[str, tuple[str, str | None]] = {
    "memory": ("jobq.stores.sqlite", None),
    "sqlite": ("jobq.stores.sqlite", None),
    "valkey": ("jobq.stores.valkey", "valkey"),
    "valkeys": ("jobq.stores.valkey", "valkey"),
    "redis": ("jobq.stores.valkey", "valkey"),
    "rediss": ("jobq.stores.valkey", "valkey"),
    "valkey+sentinel": ("jobq.stores.valkey", "valkey"),
    "valkey+cluster": ("jobq.stores.valkey", "valkey"),
}

_EXAMPLES = "memory://, sqlite:///path/to/jobs.db, valkey://host:6379"


def open_store(url: str, *, clock: Clock | None = None) -> Store:
    """The store at `url`, not yet connected: `async with open_store(url) as store`. ConfigError says what to type."""
    scheme = url.partition(":")[0].lower()
    if scheme not in _SCHEMES:
        # What stands before an @ may be a password, also where no scheme says that this is a URL.
        shown = url if "@" not in url else "…" if "@" in scheme else f"{scheme}://…"
        raise ConfigError(f"no store for {shown!r}: a store URL looks like one of {_EXAMPLES}")
    module, extra = _SCHEMES[scheme]
    try:
        opener = import_module(module).open
    except ImportError as e:
        if extra is None:
            raise
        raise ConfigError(f"{scheme}:// needs a driver that is not installed: pip install 'jobq[{extra}]'") from e
    try:
        store: Store = opener(url, clock)
    except ValueError as e:  # urllib's, of brackets and ports that make no sense
        if isinstance(e, ConfigError):
            raise
        raise ConfigError(f"{scheme}://… is not a store URL that can be read: {e}") from e
    return store
