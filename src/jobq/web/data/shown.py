"""Values that users have stored, cut to what a page can show."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

import msgspec

from jobq.core.records.jobs import Failure
from jobq.core.values.codec import get_codec
from jobq.web.data.view import Shape, View

MAX_SHOWN = 4_096
"""Characters of one value on a page. A reader of a page looks at a few dozen lines."""
MAX_IN_ROW = 200
"""Characters of the arguments in a row of a table."""
MAX_DECODED = 256 * 1024
"""Bytes of a value that is decoded to be shown with indentation. The beginning of a larger value is
shown as it is stored, because decoding megabytes would block other requests."""
MAX_DOWNLOAD = 16 * 2**20
"""Bytes of a value that can be downloaded. jq-server's own limit for a message is the same."""

_TOO_LARGE = 1e30
"""No progress counts so far. Python cannot divide integers of some hundred digits."""


class Shown(Shape, frozen=True, kw_only=True):
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


class Problem(Shape, frozen=True, kw_only=True):
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


def shown(view: View, data: bytes, codec: str, *, limit: int = MAX_SHOWN) -> Shown:
    """A stored value, e.g. a result."""
    return _shown(view, data, codec, limit, lambda: as_json(get_codec(codec).decode(data)))


def shown_or_none(view: View, data: bytes | None, codec: str) -> Shown | None:
    """The same for a value that may be missing."""
    return None if data is None else shown(view, data, codec)


def shown_call(view: View, data: bytes, codec: str, task: str) -> Shown:
    """The arguments of a job: a list, an object, or both as `{"args": …, "kwargs": …}`."""
    return _shown(view, data, codec, MAX_SHOWN, lambda: as_json(_call(data, codec, task)))


def shown_in_row(view: View, data: bytes, codec: str, task: str) -> Shown:
    """The same on one line, cut to what a table has room for."""
    return _shown(view, data, codec, MAX_IN_ROW, lambda: _compact(_call(data, codec, task)))


def _call(data: bytes, codec: str, task: str) -> Any:
    args, kwargs = get_codec(codec).for_task(task).decode_call(data)
    if args and kwargs:
        return {"args": args, "kwargs": kwargs}
    return kwargs or list(args)


def _shown(view: View, data: bytes, codec: str, limit: int, as_text: Callable[[], str]) -> Shown:
    if view.hide_payloads:
        return Shown(text="", size=len(data), hidden=True, codec=codec)
    text = data[: 4 * limit].decode("utf-8", "replace")
    if len(data) <= MAX_DECODED:
        try:
            text = as_text()
        except Exception:  # a codec that is unknown here, or one of the user's that raises
            text = _undecoded(data, codec, text)
    return Shown(
        text=text[:limit],
        size=len(data),
        cut=len(text) > limit or len(data) > MAX_DECODED,
        codec=codec,
    )


def _undecoded(data: bytes, codec: str, text: str) -> str:
    if codec == "json" or text.isprintable():
        return text
    return f"({len(data):,} bytes that only the codec {codec} can read)"


def as_json(value: Any) -> str:
    """A value as JSON with indentation. What JSON does not know is shown as text."""
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode()


def _compact(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()


def problem(view: View, failure: Failure | None, *, traceback: bool = True) -> Problem | None:
    """Why something failed. A message may contain arguments, so it is hidden with the payloads."""
    if failure is None:
        return None
    hidden = view.hide_payloads
    return Problem(
        reason=failure.reason,
        type=failure.type,
        message="" if hidden else failure.message,
        traceback=None if hidden or not traceback else failure.traceback,
        attempt=failure.attempt,
        at_ms=failure.at_ms,
        fingerprint=failure.fingerprint,
        worker=failure.worker,
        exhausted=failure.exhausted,
        hidden=hidden,
    )


def percent(data: bytes | None, codec: str) -> float | None:
    """How far a job is, if its progress says so in one of the usual ways."""
    if data is None or len(data) > MAX_SHOWN:
        return None
    try:
        value = get_codec(codec).decode(data)
    except Exception:  # as above
        return None
    if isinstance(value, dict):
        done, total = value.get("done"), value.get("total")
        if _is_number(done) and _is_number(total) and total > 0:
            return _within(100 * done / total)
        value = value.get("percent")
    if not _is_number(value):
        return None
    return _within(100 * value if isinstance(value, float) and value <= 1 else value)


def _is_number(value: object) -> TypeGuard[float]:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and abs(value) < _TOO_LARGE  # type: ignore[arg-type]


def _within(value: float) -> float:
    return max(0.0, min(100.0, float(value)))
