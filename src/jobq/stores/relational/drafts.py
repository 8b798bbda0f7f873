"""Flows that a handle has begun and not submitted.

The later calls of a flow must find it stored. If the flow was swept, or another caller's call was
refused, they would otherwise begin a new flow that lacks the members of the earlier calls.
"""

from __future__ import annotations

import time

from jobq.core.defaults import FLOW_MS
from jobq.core.records import JobKey, JobSpec
from jobq.stores.relational.submitting import Flow


class Drafts:
    """Tells the first call of a flow from later ones, by the first member of the first call."""

    def __init__(self) -> None:
        self._begun: dict[Flow, tuple[JobKey, float]] = {}

    def begins(self, flow: Flow, spec: JobSpec) -> bool:
        """Whether a call whose first member is `spec` may begin the flow."""
        now = time.monotonic()
        job = JobKey(spec.queue, spec.id)
        first, _ = self._begun.setdefault(flow, (job, now))
        return first == job

    def forget(self, flow: Flow) -> None:
        """The flow is submitted or refused."""
        self._begun.pop(flow, None)
        # Of flows whose caller died, forget those that were swept long ago. The oldest come first.
        before = time.monotonic() - 24 * FLOW_MS / 1000
        for name, (_, since) in list(self._begun.items())[:2]:
            if since < before:
                del self._begun[name]
