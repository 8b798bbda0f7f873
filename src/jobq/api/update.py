"""JobUpdate: what `job.follow()` yields."""

from __future__ import annotations

from typing import Any

import msgspec

from jobq.api.info import JobInfo
from jobq.core.states import State


class JobUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """A job as it was when something changed, and the lines it has logged since the last update."""

    info: JobInfo
    lines: tuple[str, ...] = ()

    @property
    def state(self) -> State:
        """The job's state."""
        return self.info.state

    @property
    def progress(self) -> Any:
        """The last value that the handler passed to `current_job().progress(…)`; None if none."""
        return self.info.progress

    @property
    def ended(self) -> bool:
        """Whether the job has ended. No update follows this one."""
        return self.info.state.ended
