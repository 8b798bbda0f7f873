"""Tell others about an audit: a POST when the verdict changes, and metrics for Prometheus."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

_TRIES = 3
_TIMEOUT_S = 10.0  # seconds per try: a receiver that takes longer is down
_PAUSE_S = 2.0  # seconds between tries
VERDICTS = ("proved", "violated", "unprovable")


def post(
    url: str, summary: Mapping[str, Any], *, pause: Callable[[float], None] = time.sleep
) -> str | None:
    """POST a summary as JSON. Returns None, or why it could not be delivered; never raises.

    Tries three times. A reply of 4xx is not tried again."""
    try:
        request = urllib.request.Request(
            url,
            data=msgspec.json.encode(summary),
            headers={"Content-Type": "application/json", "User-Agent": "jq-pipeline"},
            method="POST",
        )
        if request.type not in ("http", "https"):
            return f"{url} is not an http:// or https:// URL"
    except ValueError as e:
        return str(e)
    problem = ""
    for attempt in range(_TRIES):
        if attempt:
            pause(_PAUSE_S)
        try:
            with urllib.request.urlopen(request, timeout=_TIMEOUT_S):
                return None
        except urllib.error.HTTPError as e:
            problem = f"HTTP {e.code} {e.reason}"
            if e.code < 500:
                break
        except (OSError, ValueError) as e:
            problem = str(getattr(e, "reason", e))
    return problem


def prometheus(note: Mapping[str, Any]) -> str:
    """The note about an audit (LAKE/_jobq/audit.json) in Prometheus' text format.

    The names are those of `jq-pipeline run --metrics-port`."""
    lines = [
        "# HELP jobq_pipeline_audit_verdict 1 for the verdict of the last audit, 0 for the others.",
        "# TYPE jobq_pipeline_audit_verdict gauge",
        *(
            f'jobq_pipeline_audit_verdict{{verdict="{v}"}} {int(note["verdict"] == v)}'
            for v in VERDICTS
        ),
        "# HELP jobq_pipeline_audit_timestamp_seconds When the lake was last audited.",
        "# TYPE jobq_pipeline_audit_timestamp_seconds gauge",
        f"jobq_pipeline_audit_timestamp_seconds {note['at_ms'] / 1000:.3f}",
    ]
    return "\n".join(lines) + "\n"
