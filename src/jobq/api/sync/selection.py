"""SyncSelection: a selection of jobs with blocking methods, `queue.sync.select("failed")`."""

from __future__ import annotations

from jobq.api.selection import Selection
from jobq.api.sync.blocking import Blocking, blocking


class SyncSelection(Blocking):
    """A selection of jobs with blocking methods. `on_progress` is called in another thread."""

    __slots__ = ()

    def __init__(self, selection: Selection) -> None:
        self._of = selection

    def __repr__(self) -> str:
        return repr(self._of)

    preview = blocking(Selection.preview)
    cancel = blocking(Selection.cancel)
    rerun = blocking(Selection.rerun)
    purge = blocking(Selection.purge)
