"""Values that users have stored, cut to what a page can show."""

from __future__ import annotations

from jobq.web.data.view import Shape

MAX_SHOWN = 4_096
"""Characters of one value on a page. A reader of a page looks at a few dozen lines."""
MAX_DECODED = 256 * 1024
"""Bytes of a value that is decoded to be shown with indentation. The beginning of a larger value is
shown as it is stored, because decoding megabytes would block other requests."""
MAX_DOWNLOAD = 16 * 2**20
"""Bytes of a value that can be downloaded. jq-server's own limit for a message is the same."""


class Shown(Shape):
    """A stored value, cut on the server."""

    text: str
    """JSON with indentation if it can be decoded here. Empty if it is hidden."""
    size: int
    """Bytes of the stored value."""
    cut: bool = False
    """Whether `text` is only the beginning."""
    hidden: bool = False
    """Whether the dashboard was started with hide_payloads."""
    codec: str = "json"


class Problem(Shape):
    """Why an attempt or a job failed."""

    reason: str
    """error, timeout, stalled, expired, rejected, child, crashed or unknown."""
    type: str
    message: str
    """Empty if payloads are hidden."""
    traceback: str | None
    """None if payloads are hidden."""
    attempt: int
    at_ms: int
    fingerprint: str | None
    worker: str | None
    exhausted: bool
    hidden: bool = False
