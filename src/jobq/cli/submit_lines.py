"""`jq-ctl job submit --lines`: enqueue many jobs, one JSON value per line."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, NamedTuple

import click
import msgspec

from jobq.api.job import Job
from jobq.api.queue import Queue
from jobq.cli import text
from jobq.cli.options import FAILED, USAGE, Ctl, fail
from jobq.cli.progress import bar
from jobq.core.checks import shown
from jobq.core.options import BY_NAME
from jobq.core.policies import Unique
from jobq.errors import InvalidJob, JobqError, QueueFull

_BATCH = 1000
"""Jobs per call to the store."""
_OPTIONS = tuple(name for name, option in BY_NAME.items() if option.cli)
FIELDS = ("name", "args", "kwargs", *_OPTIONS)


class JobLine(NamedTuple):
    """One job to submit, and the number of the line that it came from."""

    line: int
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: dict[str, Any]


async def submit_lines(
    ctl: Ctl, queue: Queue, source: str, name: str | None, options: Mapping[str, Any]
) -> int:
    """Submit the lines in order, in batches. Stops at a bad line, and reports the progress."""
    accepted = duplicates = 0
    stream, total = _open(source)
    with stream, bar("submitting", total) as advance:
        jobs = parse_lines(stream, name, options)
        try:
            while batch := list(islice(jobs, _BATCH)):
                handles = await _put(ctl, queue, batch)
                duplicates += sum(h.duplicate for h in handles)
                accepted += sum(not h.duplicate for h in handles)
                advance(len(batch))
        except JobqError as e:
            accepted += len(e.accepted) if isinstance(e, QueueFull) else 0
            done = (
                f" ({text.plural(accepted + duplicates, 'job')} submitted before it)"
                if accepted + duplicates
                else ""
            )
            fail(f"{e}{done}", USAGE if isinstance(e, InvalidJob) else FAILED, e)
    document = {"queue": queue.name, "accepted": accepted, "duplicates": duplicates}
    repeated = f", {duplicates:,} already there" if duplicates else ""
    ctl.out.show(
        document, lambda: f"{text.plural(accepted, 'job')} accepted in {queue.name}{repeated}"
    )
    return 0


async def _put(ctl: Ctl, queue: Queue, batch: list[JobLine]) -> list[Job[Any]]:
    calls = []
    for job in batch:
        try:
            check_names(job.options.get("unique"), job.args)
            calls.append(queue.task_by_name(job.name, **job.options).bind(*job.args, **job.kwargs))
        except (JobqError, TypeError) as e:
            raise InvalidJob(f"line {job.line}: {e}") from e
    try:
        return await ctl.backend.within(queue.enqueue_many(calls))
    except InvalidJob as e:
        raise InvalidJob(f"lines {batch[0].line} to {batch[-1].line}: {e}") from e


def check_names(unique: object, args: Sequence[Any]) -> None:
    """Refuse to compare positional arguments: jq-ctl does not know their names, which count."""
    policy = Unique.of(unique)
    if policy is not None and not policy.fields and args:
        raise InvalidJob("a unique job that compares all arguments needs all of them by name")


def _open(source: str) -> tuple[Any, int | None]:
    """Open a file of lines and count them. The count is None for standard input."""
    if source == "-":
        return sys.stdin.buffer, None
    try:
        with open(source, "rb") as counted:
            total = sum(1 for line in counted if line.strip())
        return open(source, "rb"), total
    except OSError as e:
        raise click.UsageError(f"cannot read {source}: {e.strerror}") from e


def parse_lines(
    lines: Iterable[bytes], name: str | None, options: Mapping[str, Any]
) -> Iterator[JobLine]:
    """Parse one job per line, skipping blank lines. Raises InvalidJob with the line number."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _parse_line(number, line, name, options)


def _parse_line(number: int, line: bytes, name: str | None, options: Mapping[str, Any]) -> JobLine:
    try:
        value = msgspec.json.decode(line)
    except (msgspec.DecodeError, RecursionError) as e:
        raise InvalidJob(f"line {number} is not valid JSON: {e}") from e
    if isinstance(value, list):
        value = {"args": value}
    if not isinstance(value, dict):
        raise InvalidJob(
            f"line {number} must be an array of arguments or an object, not {shown(value)}"
        )
    if unknown := [key for key in value if key not in FIELDS]:
        known = ", ".join(FIELDS)
        raise InvalidJob(
            f'line {number} has an unknown field {unknown[0]!r}: arguments belong in "kwargs". '
            f"Known fields: {known}"
        )
    task = value.get("name", name)
    if not isinstance(task, str):
        raise InvalidJob(
            f'line {number} has no task: add a "name", or give NAME on the command line'
        )
    args, kwargs = value.get("args", []), value.get("kwargs", {})
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        raise InvalidJob(f'line {number}: "args" must be an array and "kwargs" an object')
    own = {key: value[key] for key in _OPTIONS if key in value}
    if isinstance(own.get("at"), str):
        own["at"] = _time(number, own["at"])
    if isinstance(own.get("unique"), dict):
        own["unique"] = _unique(number, own["unique"])
    return JobLine(number, task, tuple(args), kwargs, {**options, **own})


def _time(number: int, value: str) -> datetime:
    try:
        return datetime.fromisoformat(value).astimezone()
    except ValueError as e:
        raise InvalidJob(f'line {number}: "at" must be an ISO 8601 time, not {value!r}') from e


def _unique(number: int, value: dict[str, Any]) -> Unique:
    """{"fields": ["document"], "mode": "throttle", "period": 60}, each of them optional."""
    if unknown := [key for key in value if key not in ("fields", "mode", "period")]:
        raise InvalidJob(
            f'line {number}: "unique" has an unknown field {unknown[0]!r}. '
            "Known fields: fields, mode, period"
        )
    fields = value.get("fields", [])
    if not isinstance(fields, list):
        raise InvalidJob(f'line {number}: "fields" of "unique" must be an array of names')
    rest = {key: value[key] for key in ("mode", "period") if key in value}
    try:
        return Unique(*fields, **rest)
    except InvalidJob as e:
        raise InvalidJob(f"line {number}: {e}") from e
