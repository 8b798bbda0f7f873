"""memory:// and sqlite://: nothing to start, a new name or file per test."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from unittest import mock
from uuid import uuid4

from jobq_conformance.places import Fresh, at, place


@place("memory")
def memory(tmp: Path) -> Iterator[Fresh]:
    """A store of its own name per test."""
    yield lambda: at(f"memory://contract-{uuid4().hex}")


@place("sqlite")
def sqlite(tmp: Path) -> Iterator[Fresh]:
    """A file per test."""
    numbers = count()
    yield lambda: at(f"sqlite:///{tmp}/{next(numbers)}.db")


@place("memory-steps", default=False)
def memory_steps(tmp: Path) -> Iterator[Fresh]:
    """The same with flows that are submitted in steps of two jobs or edges."""
    from jobq.stores.relational import staging

    with mock.patch.object(staging, "STEP", 2):
        yield lambda: at(f"memory://contract-{uuid4().hex}")
