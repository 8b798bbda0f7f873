"""The end of a run that completes its job in a transaction of its handler (`complete_in`)."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from jobq.errors import JobqError
from jobq.stores.base import Completion, transactional_of

if TYPE_CHECKING:
    from jobq.engine.run import Run

log = logging.getLogger("jobq")

_FIRST_CHECK_S, _LAST_CHECK_S = 0.02, 1.0
"""Seconds between two looks at a transaction that has not ended; the pause doubles. PostgreSQL
sends no signal when a row is unlocked."""
PATIENCE_S = 60.0
"""Seconds that a run waits for the end of a transaction that its handler left open. After that the
lease runs out, and the job runs again when the transaction has been rolled back."""


class NotCommitted(JobqError):
    """The handler returned, and its transaction with `complete_in` was not committed."""

    def __init__(self) -> None:
        super().__init__(
            "the handler returned, and the transaction of complete_in was not committed: commit it "
            "before the handler returns"
        )


async def completion(run: Run) -> Completion:
    """Whether the transaction of a run's handler was committed. Waits while it is open."""
    transactional = transactional_of(run.store)
    assert transactional is not None
    pause, waited = _FIRST_CHECK_S, 0.0
    while True:
        state: Completion = "open"
        try:
            state = await transactional.completion(run.ref)
        except JobqError as error:  # the store is unavailable: ask again
            log.warning("%s: cannot tell whether complete_in was committed: %s", run, error)
        if state != "open" or waited >= PATIENCE_S:
            return state
        if waited == 0.0:
            log.warning(
                "%s: its handler has ended, and the transaction of complete_in is still open: "
                "commit it or roll it back before the handler returns",
                run,
            )
        await asyncio.sleep(pause)
        waited += pause
        pause = min(2 * pause, _LAST_CHECK_S)
