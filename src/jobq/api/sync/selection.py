"""SyncSelection: a selection of jobs with blocking methods, `queue.sync.select("failed")`."""

from __future__ import annotations

from jobq.api.selection import Preview, Selection
from jobq.client.portal import run
from jobq.operations.bulk import BulkProgress, OnProgress


class SyncSelection:
    """A selection of jobs with blocking methods. `on_progress` is called in another thread."""

    __slots__ = ("_selection",)

    def __init__(self, selection: Selection) -> None:
        self._selection = selection

    def __repr__(self) -> str:
        return repr(self._selection)

    def preview(self, *, samples: int = 5, max_jobs: int = 10_000) -> Preview:
        """See `Selection.preview`."""
        return run(self._selection.preview(samples=samples, max_jobs=max_jobs))

    def cancel(
        self,
        *,
        pace: float | None = None,
        max_jobs: int | None = None,
        cursor: str | None = None,
        on_progress: OnProgress | None = None,
    ) -> BulkProgress:
        """See `Selection.cancel`."""
        return run(
            self._selection.cancel(
                pace=pace, max_jobs=max_jobs, cursor=cursor, on_progress=on_progress
            )
        )

    def rerun(
        self,
        *,
        pace: float | None = None,
        max_jobs: int | None = None,
        cursor: str | None = None,
        on_progress: OnProgress | None = None,
    ) -> BulkProgress:
        """See `Selection.rerun`."""
        return run(
            self._selection.rerun(
                pace=pace, max_jobs=max_jobs, cursor=cursor, on_progress=on_progress
            )
        )

    def purge(
        self,
        *,
        pace: float | None = None,
        max_jobs: int | None = None,
        cursor: str | None = None,
        on_progress: OnProgress | None = None,
    ) -> BulkProgress:
        """See `Selection.purge`."""
        return run(
            self._selection.purge(
                pace=pace, max_jobs=max_jobs, cursor=cursor, on_progress=on_progress
            )
        )
