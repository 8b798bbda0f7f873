"""Logging of jq-worker and jq-relay: to stderr, as text or as one JSON object per line.

An application that configures logging when it is imported keeps its handlers and formats.
Passwords in URLs are hidden and control characters are escaped. In the text format, every line of
a record but its first is indented, so a user's text cannot forge a record.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import logging
import os
import sys
import threading
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

import msgspec

from jobq.core.values.checks import shown
from jobq.core.values.printable import json_text, lines, one_line, redacted

LogFormat = Literal["text", "json"]
FORMATS: tuple[LogFormat, ...] = ("text", "json")
TRACE = 5
"""Log level below DEBUG, for every call to a store."""
LEVELS = {
    "trace": TRACE,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
    "error": logging.ERROR,
}

_MAX_LINE = 1 << 16
"""Bytes of a line that somebody else writes to stderr. More becomes another object."""
_LAST_LINES_S = 2.0
"""Seconds for the last lines when the process ends."""
_USUAL = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_INDENT = "    "
_JOB = ("job_id", "task", "queue", "attempt", "batch", "trace_id")
"""The attributes that `jobq.logs` adds to records of handlers, as far as a line shows them."""


def configure(level: str, format: LogFormat, *, chosen: bool = True, whole: bool = False) -> None:
    """Set up logging, unless the application has configured it.

    If it has, only a level that the operator has `chosen` is applied, to jobq's loggers. With
    `whole`, json is what all of stderr is: lines that others write there, such as gRPC's core,
    become objects too."""
    logging.addLevelName(TRACE, "TRACE")
    root = logging.getLogger()
    if root.handlers or logging.getLogger("jobq").handlers:
        if chosen:
            logging.getLogger("jobq").setLevel(LEVELS[level])
        return
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if format == "json" else TextFormatter())
    if whole and format == "json":
        _wrap_stderr(handler)
    root.addHandler(handler)
    root.setLevel(LEVELS[level])


def _wrap_stderr(handler: logging.StreamHandler[TextIO]) -> None:
    """Let the handler write to the stderr of the process, and be the only one that does.

    File descriptor 2 is a pipe from now on, and a thread makes objects of its lines. The pipe never
    blocks: C code may write while it holds the GIL, without which nobody reads. Only lines that
    come faster than they are read, by a megabyte, are lost."""
    sys.stderr.flush()
    stderr = os.fdopen(os.dup(2), "w", encoding="utf-8", errors="backslashreplace")
    handler.setStream(stderr)
    reading, writing = os.pipe()
    with contextlib.suppress(AttributeError, OSError):  # not on every system, or beyond a limit
        fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 1 << 20)
    os.set_blocking(writing, False)
    os.dup2(writing, 2)
    os.close(writing)
    thread = threading.Thread(
        target=_wrap, args=(reading, handler), name="jobq stderr", daemon=True
    )
    thread.start()

    def unwrap() -> None:
        sys.stderr.flush()
        os.dup2(stderr.fileno(), 2)  # this closes the pipe, so that the thread ends
        thread.join(_LAST_LINES_S)

    atexit.register(unwrap)


def _wrap(reading: int, handler: logging.Handler) -> None:
    with open(reading, "rb") as lines:
        while line := lines.readline(_MAX_LINE):
            text = line.decode("utf-8", "backslashreplace").rstrip("\r\n")
            if text.strip():
                handler.handle(
                    logging.LogRecord("stderr", logging.WARNING, "", 0, text, None, None)
                )


class TextFormatter(logging.Formatter):
    """Time, level and message. Further lines of a message and tracebacks are indented.

    A line that a handler logs ends with its job. jobq's own lines name it in their message."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The first part of a record: all but its traceback."""
        text = super().formatMessage(record)
        if record.name.partition(".")[0] == "jobq":
            return text
        have = vars(record)
        job = " ".join(f"{name}={one_line(str(have[name]))}" for name in _JOB if name in have)
        return f"{text} [{job}]" if job else text

    def format(self, record: logging.LogRecord) -> str:
        """Format the record as text."""
        return redacted(lines(super().format(record))).replace("\n", f"\n{_INDENT}")


class JsonFormatter(logging.Formatter):
    """One object per line: at, level, logger, message, extra attributes, and `error`."""

    def format(self, record: logging.LogRecord) -> str:
        """Format the record as JSON."""
        document: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redacted(record.getMessage()),
        }
        document |= {
            name: redacted(value) if isinstance(value, str) else value
            for name, value in vars(record).items()
            if name not in _USUAL and name not in document
        }
        if record.exc_info and record.exc_info[1] is not None:
            document["error"] = {
                "type": type(record.exc_info[1]).__name__,
                "traceback": redacted(self.formatException(record.exc_info)),
            }
        try:
            encoded = msgspec.json.encode(document, enc_hook=str).decode()
        except Exception:  # e.g. a lone surrogate from a file name, or an attribute of unknown type
            encoded = json.dumps(document, default=shown, skipkeys=True)
        return json_text(encoded)
