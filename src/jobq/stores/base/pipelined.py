"""What a store may offer in addition, to work while its caller does."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Protocol, cast

from jobq.core.records import JobKey, JobRecord, JobSpec


class Pipelined(Protocol):
    """Optional ways to keep a store busy while its caller works. A store has all three or none.

    Correctness never depends on them: if `pipeline_of(store)` is None, callers do without.
    """

    @property
    def lanes(self) -> int:
        """How many exchanges of a worker, or puts of a producer, should be in flight at a time."""
        ...

    def prepare(self, specs: Sequence[JobSpec]) -> Sequence[JobSpec]:
        """Check and encode the specs for a `put` of exactly these, while another is in flight."""
        ...

    def expect(self, job: JobKey) -> AbstractAsyncContextManager[AsyncIterator[JobRecord | None]]:
        """Be notified of the end of a job that this handle puts inside the context.

        This needs no call to register. Yields the record of the ended job, or None if the store
        knows only that the job has ended. A duplicate, which was stored before, yields nothing: use
        `listen` for it.
        """
        ...


def pipeline_of(store: object) -> Pipelined | None:
    """The store as a `Pipelined` one; None if it is not."""
    return cast(Pipelined, store) if hasattr(store, "lanes") else None
