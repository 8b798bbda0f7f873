"""`open_store(url)`: from a URL to a store. Drivers are imported only when their scheme is used.

jobq's own stores are listed here. A package adds another one with an entry point of the group
`jobq.stores`: its name is the scheme, and its value is a callable `open(url, clock)` that returns a
store that is not connected yet.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from jobq.errors import ConfigError
from jobq.stores.base import Clock, Store
from jobq.stores.base.urls import refusal

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "jobq.stores"
"""The group of entry points that name stores of other packages."""

# scheme → (module with `open(url, clock)`, extra that installs its driver)
_SCHEMES: dict[str, tuple[str, str | None]] = {
    "memory": ("jobq.stores.sqlite", None),
    "sqlite": ("jobq.stores.sqlite", None),
    "valkey": ("jobq.stores.valkey", "valkey"),
    "valkeys": ("jobq.stores.valkey", "valkey"),
    "redis": ("jobq.stores.valkey", "valkey"),
    "rediss": ("jobq.stores.valkey", "valkey"),
    "valkey+sentinel": ("jobq.stores.valkey", "valkey"),
    "valkey+cluster": ("jobq.stores.valkey", "valkey"),
    "postgresql": ("jobq.stores.postgres", "postgres"),
    "postgres": ("jobq.stores.postgres", "postgres"),
    "grpc": ("jobq.stores.remote", "grpc"),
    "grpcs": ("jobq.stores.remote", "grpc"),
}

_EXAMPLES = (
    "memory://, sqlite:///path/to/jobs.db, valkey://host:6379, postgresql://host:5432/database, "
    "grpc://host:50051"
)


def open_store(url: str, *, clock: Clock | None = None) -> Store:
    """The store at `url`, not connected yet: `async with open_store(url) as store`.

    ConfigError says what to type instead.
    """
    scheme = url.partition(":")[0].lower()
    if (reason := refusal(scheme)) is not None:
        raise ConfigError(reason)
    opener = _own(scheme) if scheme in _SCHEMES else _of_another_package(scheme, url)
    try:
        store: Store = opener(url, clock)
    except ValueError as e:  # from urllib, for brackets and ports that are not valid
        if isinstance(e, ConfigError):
            raise
        raise ConfigError(f"{scheme}://… is not a valid store URL: {e}") from e
    return store


def _own(scheme: str) -> Callable[..., Any]:
    module, extra = _SCHEMES[scheme]
    try:
        opener: Callable[..., Any] = import_module(module).open
    except ImportError as e:
        if extra is None:
            raise
        raise ConfigError(
            f"{scheme}:// needs a driver that is not installed: pip install 'jobq[{extra}]'"
        ) from e
    return opener


def _of_another_package(scheme: str, url: str) -> Callable[..., Any]:
    found = _others()
    if scheme not in found:
        # What comes before an @ may be a password, even without a scheme.
        shown = url if "@" not in url else "…" if "@" in scheme else f"{scheme}://…"
        known = ", ".join((*_SCHEMES, *sorted(found)))
        raise ConfigError(
            f"no store for {shown!r}: a store URL looks like one of {_EXAMPLES}; known schemes are "
            f"{known} (valkey and redis need pip install 'jobq[valkey]', postgresql needs "
            "'jobq[postgres]', grpc needs 'jobq[grpc]')"
        )
    try:
        opener = found[scheme].load()
    except Exception as e:  # the package may raise anything when it is imported
        raise ConfigError(
            f"{scheme}:// is a store of {found[scheme].value}, which cannot be loaded: {e}"
        ) from e
    if not callable(opener):
        raise ConfigError(
            f"{scheme}:// is a store of {found[scheme].value}, "
            "which is not a callable open(url, clock)"
        )
    return opener  # type: ignore[no-any-return]


def _others() -> dict[str, EntryPoint]:
    """Stores of other packages, by scheme."""
    from importlib.metadata import entry_points  # a sixth of the time that `import jobq` would take

    return {point.name.lower(): point for point in entry_points(group=GROUP)}
