"""An exception as a job stores it: bounded in size, with a fingerprint that groups failures of one
cause.
"""

from __future__ import annotations

import hashlib
import re
import traceback
from functools import cache
from types import TracebackType
from typing import NamedTuple

from msgspec.structs import replace

from jobq.core.records.jobs import Failure, Reason
from jobq.core.values.error_names import former_name, public_name

MAX_MESSAGE = 2_000
"""Characters."""
MAX_TRACEBACK = 4_096
"""Bytes of UTF-8. A job keeps up to MAX_ERRORS of them."""
MAX_ERRORS = 10
"""Failed runs that a job keeps: errors, timeouts, stalls and crashes.

Ten are enough to see whether they have one cause.
"""
MAX_TYPE = 256
"""Characters of the type of an error. Python's own names are shorter."""
MAX_FINGERPRINT = 64
"""Characters of a reported fingerprint. Ours has twelve."""
MAX_WORKER = 1_024
"""Characters of the name of the worker that reports a failure."""
_MAX_PART = 500
"""Characters of one frame or message in a traceback that is too long."""
_MAX_FRAMES = 30
"""The last frames matter most, and formatting one takes about 20 µs."""


def _slashes(path: str) -> str:
    return path.replace("\\", "/")


_HERE = _slashes(__file__).rpartition("core/")[0]


@cache
def _libraries() -> tuple[str, ...]:
    import sysconfig  # 2 ms, and only a failure needs it

    names = ("stdlib", "platstdlib", "purelib", "platlib")
    return tuple({_slashes(sysconfig.get_path(name)) for name in names})


class Description(NamedTuple):
    """The type, message and traceback of an exception, as text."""

    type: str
    message: str
    traceback: str | None


class ReportedError(Exception):
    """A failure that a worker in another language reported, in the words of that language."""

    def __init__(
        self, type: str, message: str, traceback: str | None = None, *, reason: Reason = "error"
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.description = Description(
            bounded(type or "Error", MAX_TYPE),
            bounded(message),
            _cut(traceback) if traceback else None,
        )


def describe(error: BaseException) -> Description:
    """The type, message and traceback of an exception, each bounded.

    Never raises, whatever the exception's own methods do.
    """
    if isinstance(error, ReportedError):
        return error.description
    return Description(_type(error), bounded(_message(error)), _traceback(error))


def bounded_failure(failure: Failure) -> Failure:
    """The failure that another process has sent, cut to what this module would have made."""
    type, message, text = failure.type, failure.message, failure.traceback
    short = len(failure.fingerprint or "") <= MAX_FINGERPRINT
    worker = failure.worker
    if (
        len(type) <= MAX_TYPE
        and len(message) <= MAX_MESSAGE
        and (text is None or 4 * len(text) <= MAX_TRACEBACK)
        and short
        and len(worker or "") <= MAX_WORKER
    ):
        return failure
    return replace(
        failure,
        type=bounded(type, MAX_TYPE),
        message=bounded(message),
        traceback=None if text is None else _cut(text),
        fingerprint=failure.fingerprint if short else None,
        worker=None if worker is None else bounded(worker, MAX_WORKER),
    )


def fingerprint(error: BaseException) -> str:
    """Twelve hex digits that are equal for failures of one cause.

    One cause means: the same type, raised in the same function of the user's code, with the same
    message except for numbers, addresses and quoted values. Line numbers do not count.
    """
    return fingerprint_of(error, Description(_type(error), bounded(_message(error)), None))


def fingerprint_of(error: BaseException, description: Description) -> str:
    """The fingerprint of an exception that was already described."""
    text = "\0".join(
        (
            former_name(description.type),
            _origin(error.__traceback__),
            normalised(description.message),
        )
    )
    return hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=6).hexdigest()


_VARYING = re.compile(
    r"""
      '(?:[^'\\\n]|\\.)*' | "(?:[^"\\\n]|\\.)*" | `[^`\n]*`      # quoted values
    | \b0x[0-9a-f]+\b                                            # addresses
    | \b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b            # uuids
    | \b(?=[0-9a-f]*\d)[0-9a-f]{8,}\b                            # digests
    | \d+(?:[.,:]\d+)*                                           # numbers and times
    """,
    re.VERBOSE | re.IGNORECASE,
)


def normalised(message: str) -> str:
    """The message without the parts that vary from job to job."""
    return _VARYING.sub("·", message[:500])


def bounded(text: str, limit: int = MAX_MESSAGE) -> str:
    """The text, cut if it is too long, without characters that UTF-8 cannot encode."""
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _cut(text: str) -> str:
    """The end of a traceback that is too long: the last frames matter most."""
    data = text.encode("utf-8", "replace")
    if len(data) > MAX_TRACEBACK:
        return f"…{data[3 - MAX_TRACEBACK :].decode(errors='ignore')}"
    return data.decode()


def _type(error: BaseException) -> str:
    cls = type(error)
    name = (
        cls.__qualname__
        if cls.__module__ in ("builtins", "__main__")
        else public_name(f"{cls.__module__}.{cls.__qualname__}")
    )
    return name if len(name) <= MAX_TYPE else bounded(name, MAX_TYPE)


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # a user's __str__
        return f"<the message could not be read: {type(broken).__name__}>"


def _traceback(error: BaseException) -> str | None:
    if error.__traceback__ is None and error.__cause__ is None and error.__context__ is None:
        return None
    try:
        lines = traceback.format_exception(
            type(error), error, without_jobq(error.__traceback__), limit=-_MAX_FRAMES
        )
    except Exception as broken:
        return f"<the traceback could not be formatted: {type(broken).__name__}>"
    text = "".join(lines).encode("utf-8", "replace")
    if len(text) <= MAX_TRACEBACK:
        return text.decode()
    # Cut long messages here rather than frames: the failure also stores the message itself.
    text = "".join(
        [line if len(line) <= _MAX_PART else f"{line[: _MAX_PART - 2]}…\n" for line in lines]
    ).encode("utf-8", "replace")
    return _cut(text.decode())


def without_jobq(tb: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames of jobq around the user's code, or all of it if there is
    none.

    Those are at the beginning, and between a middleware, a dependency and the handler. Frames
    behind the user's last one stay: there the user's code has called jobq.
    """
    frames = []
    while tb is not None:
        frames.append(tb)
        tb = tb.tb_next
    own = [n for n, each in enumerate(frames) if not _is_ours(each)]
    if not own:
        return frames[0] if frames else None
    first, last = own[0], own[-1]
    if last - first == len(own) - 1:  # nothing in between
        return frames[first]
    kept = frames[last]
    for n in reversed(own[:-1]):
        each = frames[n]
        kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return kept


def _is_ours(tb: TracebackType) -> bool:
    return _slashes(tb.tb_frame.f_code.co_filename).startswith(_HERE)


def _origin(tb: TracebackType | None) -> str:
    """The file and function of the innermost frame of the user's own code.

    If there is no such frame, of the innermost frame.
    """
    innermost = own = ""
    while tb is not None:
        code = tb.tb_frame.f_code
        file = _slashes(code.co_filename)
        innermost = f"{file.rpartition('/')[2]}:{code.co_qualname}"
        if not file.startswith((*_libraries(), _HERE, "<frozen")):
            own = innermost
        tb = tb.tb_next
    return own or innermost
