"""Flows that a handle has begun and not submitted.

The later calls of a flow must find it stored. If the flow was swept, or another caller's call was
refused, they would otherwise begin a new flow that lacks the members of the earlier calls.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from jobq.core.defaults import FLOW_MS
from jobq.core.records import JobKey, JobSpec
from jobq.stores.relational.submitting import Flow


class _Draft(NamedTuple):
    """A flow: the first member of its first call, who has begun it, and since when."""

    first: JobKey
    callers: int
    """Calls that began the flow. Two callers may submit it through one handle, and a call that got
    no reply is repeated."""
    since: float


class Drafts:
    """Tells the first call of a flow from later ones, by the first member of the first call."""

    def __init__(self) -> None:
        self._begun: dict[Flow, _Draft] = {}

    def begins(self, flow: Flow, spec: JobSpec) -> bool:
        """Whether a call whose first member is `spec` may begin the flow."""
        job = JobKey(spec.queue, spec.id)
        draft = self._begun.get(flow) or _Draft(job, 0, time.monotonic())
        begins = draft.first == job
        self._begun[flow] = draft._replace(callers=draft.callers + begins)
        return begins

    def refused(self, flow: Flow) -> None:
        """A call was refused, and the flow discarded. Other callers may be in the middle of it."""
        draft = self._begun.get(flow)
        if draft is not None and draft.callers > 1:
            self._begun[flow] = draft._replace(callers=draft.callers - 1)
        else:
            self.submitted(flow)

    def submitted(self, flow: Flow) -> None:
        """The flow is submitted."""
        self._begun.pop(flow, None)
        # Of flows whose caller died, forget those that were swept long ago. The oldest come first.
        before = time.monotonic() - 24 * FLOW_MS / 1000
        for name, draft in list(self._begun.items())[:2]:
            if draft.since < before:
                del self._begun[name]
