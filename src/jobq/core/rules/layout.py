"""The layout of a store: the version of how jobs are written in it.

A store carries the number of its layout and `oldest`, the oldest layout whose code can still work
on it. A release that only adds something raises `layout` and keeps `oldest`, so that the release
before it works on the same store, beside it. A release that changes the meaning of stored data
raises both, and the release before it refuses the store instead of damaging it.

A new column, table or key is an addition. A new state, flag, mode or word in an existing field is a
change of meaning: code that does not know the value takes it for damage and fails the job.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from jobq.core.version import __version__
from jobq.errors import ConfigError


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """What a store says about its data."""

    layout: int
    oldest: int
    """Code that knows no layout from this one on cannot work on the store."""
    release: str = "?"
    """The version of jobq that gave the store this layout."""


def refuse_newer(store: str, found: Layout, known: int) -> None:
    """Raise ConfigError if code that knows layouts up to `known` would damage the store."""
    if found.oldest > known:
        raise ConfigError(
            f"{store} has layout {found.layout}, from jobq {found.release}, and this is jobq "
            f"{__version__}, which can work with layouts up to {known}: upgrade jobq here to "
            f"{found.release} or newer, or use another store"
        )


def refuse_running(store: str, found: int, known: int, workers: Sequence[str]) -> None:
    """Raise ConfigError if workers of the older release still run on a store to be migrated."""
    if workers:
        names = ", ".join(sorted(workers)[:5]) + (", …" if len(workers) > 5 else "")
        raise ConfigError(
            f"{store} has layout {found} and has to be migrated to {known} for jobq {__version__}, "
            f"but {len(workers)} of its workers are running ({names}): stop all workers and "
            "producers of the older jobq, then start again. A worker that was killed counts as "
            "running until its last heartbeat expires, within a minute"
        )
