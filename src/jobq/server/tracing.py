"""The trace of a call goes on in the handler of the job that the call submits.

A client that traces sends the W3C headers `traceparent` and `tracestate` as metadata. The job keeps
them in its `meta`, where `jobq.otel` and workers in other languages find them. A context that the
job itself carries is left as it is.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec.structs import replace

from jobq.core.meta import check_meta
from jobq.core.records import JobSpec
from jobq.errors import InvalidJob
from jobq.server.handlers import Caller

_PARENT = re.compile(r"[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_MAX_STATE = 512
"""Characters of `tracestate` (W3C Trace Context, 3.3.1.5). A longer one is left out."""


def traced(specs: Sequence[JobSpec], caller: Caller) -> list[JobSpec]:
    """The jobs with the context of the call that submits them."""
    parent = caller.metadata("traceparent")
    if parent is None or not _PARENT.fullmatch(parent):
        return list(specs)
    context = {"traceparent": parent}
    state = caller.metadata("tracestate")
    if state and len(state) <= _MAX_STATE and state.isprintable():
        context["tracestate"] = state
    return [_within(spec, context) for spec in specs]


def _within(spec: JobSpec, context: dict[str, str]) -> JobSpec:
    if spec.meta is not None and "traceparent" in spec.meta:
        return spec
    try:
        return replace(spec, meta=check_meta({**(spec.meta or {}), **context}))
    except InvalidJob:  # there is no room for it: the job matters more than its trace
        return spec
