"""`jq-ctl job submit`: enqueue one job, or many from a file of JSON lines."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import click
import msgspec

from jobq.api.job import Job
from jobq.api.queue import Queue
from jobq.cli import documents, text
from jobq.cli.job_view import job_table
from jobq.cli.options import DURATION, FAILED, USAGE, Command, Ctl, fail, on_store
from jobq.cli.progress import bar
from jobq.core.checks import shown
from jobq.core.states import State
from jobq.errors import InvalidJob, JobqError, QueueFull, WaitTimeout

_BATCH = 1000  # jobs per call to the store
_OPTIONS = (
    "id",
    "delay",
    "at",
    "priority",
    "lifo",
    "retry",
    "max_stalls",
    "timeout",
    "ttl",
    "result_ttl",
    "key",
    "cost",
    "meta",
)
TIMES = ["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M%z", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M"]
_FIELDS = ("name", "args", "kwargs", *_OPTIONS)


class JobLine(NamedTuple):
    """One job to submit, and the number of the line that it came from."""

    line: int
    name: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    options: dict[str, Any]


@click.command(
    cls=Command,
    examples="""
    jq-ctl job submit charge -q billing --payload '{"tenant": "acme", "invoice": 7}'
    jq-ctl job submit charge -q billing -a tenant=acme -a invoice=8 --id inv-8 --delay 1h
    jq-ctl job submit resize --payload '["cat.png", 640]' --wait 30s
    jq-ctl job submit charge -q billing --payload @invoice.json
    jq-ctl job submit charge -q billing --lines invoices.jsonl
    echo '{"name": "charge", "args": [9], "id": "inv-9"}' | jq-ctl job submit -q billing --lines -
    """,
)
@click.argument("name", required=False)
@click.option(
    "-q", "--queue", metavar="NAME", default="default", show_default=True, help="Queue of the job."
)
@click.option(
    "--payload",
    metavar="JSON|@FILE|-",
    help="Arguments as JSON: an array of positional or an object of keyword arguments.",
)
@click.option(
    "-a",
    "--arg",
    "pairs",
    metavar="NAME=VALUE",
    multiple=True,
    help="A keyword argument. VALUE is JSON; anything else is text. Repeat for several.",
)
@click.option(
    "--lines",
    metavar="FILE|-",
    help="Submit many jobs, one JSON value per line: an array of arguments, or an object with "
    f"{', '.join(_FIELDS[:6])}, …",
)
@click.option(
    "--id", metavar="ID", help="Id of the job. A second job with the same id is not added."
)
@click.option(
    "--delay", type=DURATION, metavar="TIME", help="Start the job after this time, e.g. 1h."
)
@click.option(
    "--at",
    type=click.DateTime(TIMES),
    metavar="TIME",
    help="Start the job at this time, e.g. 2030-01-31T08:00 (local) or 2030-01-31T08:00:00Z.",
)
@click.option("--priority", type=int, metavar="N", help="Higher runs first. Default: 0.")
@click.option(
    "--lifo",
    is_flag=True,
    default=None,
    help="Put the job before the others of its priority instead of after them.",
)
@click.option(
    "--max-retries",
    "retry",
    type=int,
    metavar="N",
    help="Maximum retries after failures. Default: as declared by the task.",
)
@click.option(
    "--run-timeout",
    type=DURATION,
    metavar="TIME",
    help="Time limit of one run. Default: as declared by the task.",
)
@click.option(
    "--ttl",
    type=DURATION,
    metavar="TIME",
    help="Fail the job as expired if it has not started within this time after it was due.",
)
@click.option(
    "--result-ttl",
    type=DURATION,
    metavar="TIME",
    help="How long to keep the job's record after it ends. Default: the queue's retention.",
)
@click.option("--key", metavar="KEY", help="Key of the job, in a keyed queue.")
@click.option(
    "--meta",
    "notes",
    metavar="NAME=TEXT",
    multiple=True,
    help="Metadata to store with the job. Repeat for several.",
)
@click.option(
    "--wait",
    type=DURATION,
    metavar="TIME",
    help="Wait up to this long for the job to end. Exit code 1 unless it completed.",
)
@on_store(create=True)
async def submit(
    ctl: Ctl,
    name: str | None,
    queue: str,
    payload: str | None,
    pairs: tuple[str, ...],
    lines: str | None,
    wait: float | None,
    run_timeout: float | None,
    at: datetime | None,
    notes: tuple[str, ...],
    **given: Any,
) -> int:
    """Submit a job of the task NAME, or many jobs from JSON lines.

    A line has the names of the Python API: {"name": …, "args": […], "kwargs": {…}, "id": …,
    "delay": seconds, "priority": …}. The command line sets the options that a line leaves out.
    Lines with an id can be submitted again safely, e.g. after an interruption.
    """
    options = {
        k: v
        for k, v in {**given, "timeout": run_timeout, "at": at and at.astimezone()}.items()
        if v is not None
    }
    if notes:
        options["meta"] = dict(_note(pair) for pair in notes)
    target = await ctl.backend.queue(queue)
    if lines is not None:
        if payload is not None or pairs or "id" in options or wait is not None:
            raise click.UsageError(
                "--lines cannot be combined with --payload, --arg, --id or --wait"
            )
        return await _submit_lines(ctl, target, lines, name, options)
    if name is None:
        raise click.UsageError(
            "no task: give its NAME, e.g. jq-ctl job submit charge --payload '{\"invoice\": 7}'"
        )
    args, kwargs = arguments(payload, pairs)
    handle = await ctl.backend.within(target.task_by_name(name, **options).enqueue(*args, **kwargs))
    return await _one(ctl, handle, wait)


async def _one(ctl: Ctl, handle: Job[Any], wait: float | None) -> int:
    if wait is not None:
        try:
            await handle.wait(timeout=wait)
        except WaitTimeout:
            ctl.out.note(
                f"job {handle.id} has not ended after {text.duration(wait * 1000)}; it continues"
            )
    (record,) = await ctl.backend.locate([handle.id], handle.queue)
    ctl.out.show(
        {**documents.job(record), "duplicate": handle.duplicate}, lambda: job_table([record])
    )
    if handle.duplicate:
        ctl.out.note(f"nothing was added: job {handle.id} exists already")
    return 0 if wait is None or record.state is State.COMPLETED else FAILED


# ── one job's arguments ───────────────────────────────────────────────────────────────────────────


def arguments(payload: str | None, pairs: Iterable[str]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Build positional and keyword arguments from --payload and --arg."""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    match None if payload is None else _json(_source(payload), "--payload"):
        case None:
            pass
        case list(items):
            args = tuple(items)
        case dict(items):
            kwargs = items
        case other:
            raise click.UsageError(
                f"--payload must be a JSON array or object of arguments, not {other!r}"
            )
    for pair in pairs:
        name, found, value = pair.partition("=")
        if not found or not name.isidentifier():
            raise click.UsageError(f"--arg {pair!r} must look like name=value")
        kwargs[name] = _json_or_text(value)
    return args, kwargs


def _note(pair: str) -> tuple[str, str]:
    name, found, value = pair.partition("=")
    if not found or not name:
        raise click.UsageError(f"--meta {pair!r} must look like name=text")
    return name, value


def value_of(given: str) -> Any:
    """A value from the command line, a file (@FILE) or standard input (-): JSON, otherwise text."""
    return _json_or_text(_source(given).decode())


def _source(payload: str) -> bytes:
    if payload == "-":
        return sys.stdin.buffer.read()
    if payload.startswith("@"):
        return _read(Path(payload[1:]))
    return payload.encode()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as e:
        raise click.UsageError(f"cannot read {path}: {e.strerror}") from e


def _json(data: bytes | str, where: str) -> Any:
    try:
        return msgspec.json.decode(data)
    except msgspec.DecodeError as e:
        raise click.UsageError(f"{where} is not valid JSON: {e}") from e


def _json_or_text(value: str) -> Any:
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value


# ── many jobs ─────────────────────────────────────────────────────────────────────────────────────


async def _submit_lines(
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
            calls.append(queue.task_by_name(job.name, **job.options).bind(*job.args, **job.kwargs))
        except (JobqError, TypeError) as e:
            raise InvalidJob(f"line {job.line}: {e}") from e
    try:
        return await ctl.backend.within(queue.enqueue_many(calls))
    except InvalidJob as e:
        raise InvalidJob(f"lines {batch[0].line} to {batch[-1].line}: {e}") from e


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
    except msgspec.DecodeError as e:
        raise InvalidJob(f"line {number} is not valid JSON: {e}") from e
    if isinstance(value, list):
        value = {"args": value}
    if not isinstance(value, dict):
        raise InvalidJob(
            f"line {number} must be an array of arguments or an object, not {shown(value)}"
        )
    if unknown := [key for key in value if key not in _FIELDS]:
        known = ", ".join(_FIELDS)
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
    return JobLine(number, task, tuple(args), kwargs, {**options, **own})


def _time(number: int, value: str) -> datetime:
    try:
        return datetime.fromisoformat(value).astimezone()
    except ValueError as e:
        raise InvalidJob(f'line {number}: "at" must be an ISO 8601 time, not {value!r}') from e
