"""`jq-ctl job cancel|rerun|purge --where …`: change all jobs of a queue that match."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar, cast

import click
import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from jobq.api.info import JobInfo
from jobq.api.queue import Queue
from jobq.api.selection import Preview, Selection
from jobq.cli import text
from jobq.cli.ctl import documents
from jobq.cli.options import FAILED, Ctl, confirm, fail, yes_option
from jobq.cli.output import Column, bar_with_remarks, table
from jobq.core.values.units import parse_duration
from jobq.errors import StoreUnavailable
from jobq.operations.bulk import OPERATIONS, BulkProgress, Operation
from jobq.operations.selecting import TIMES, JobCriteria

F = TypeVar("F", bound=Callable[..., Any])

_REMARK_S = 5.0
"""Seconds between two lines with the cursor. A killed command loses at most this much progress."""

_TIMES = tuple(name.replace("_", "-") for name in TIMES)
_FIELDS = ("state", "name", "key", "error", *_TIMES)

where_option = click.option(
    "--where",
    metavar="FIELD=VALUE",
    multiple=True,
    help="Only jobs that match; repeat to narrow. Fields: state, name, key, error, meta.NAME, "
    "arg.NAME, and created-after, created-before, ended-after, ended-before with a time or an age "
    "such as 2h. In name and error, * stands for any text.",
)


def bulk_options(command: F) -> F:
    """The options of an action on all jobs that match."""
    for option in reversed(
        (
            where_option,
            click.option(
                "--dry-run",
                is_flag=True,
                help="With --where: only count the jobs and show some of them.",
            ),
            click.option(
                "--pace",
                type=click.FloatRange(min=0.001),
                metavar="N",
                help="With --where: at most N jobs per second. Default: as fast as the store can.",
            ),
            click.option(
                "-n",
                "--limit",
                type=click.IntRange(min=1),
                metavar="N",
                help="With --where: at most N jobs. Default: all that match.",
            ),
            click.option(
                "--cursor",
                metavar="TEXT",
                help="With --where: continue a command that was interrupted, at the cursor that it "
                "printed.",
            ),
            yes_option,
        )
    ):
        command = option(command)
    return command


class BulkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `bulk_options` were given."""

    where: tuple[str, ...]
    dry_run: bool
    pace: float | None
    limit: int | None
    cursor: str | None
    yes: bool

    def refuse_ids(self, ids: Sequence[str]) -> bool:
        """Whether the command is about all jobs that match. UsageError for a mix with ids."""
        alone = ("--dry-run", "--pace", "--limit", "--cursor")
        given = [self.dry_run or None, self.pace, self.limit, self.cursor]
        if self.where and ids:
            raise click.UsageError("give ids of jobs, or --where, not both")
        if not self.where:
            for name, value in zip(alone, given, strict=True):
                if value is not None:
                    raise click.UsageError(f"{name} needs --where")
            if not ids:
                raise click.UsageError("give ids of jobs, or --where, e.g. --where name='charge*'")
        return bool(self.where)


# ── reading --where ───────────────────────────────────────────────────────────────────────────────


def parse_where(where: Sequence[str]) -> tuple[tuple[str, ...], JobCriteria]:
    """The states and the criteria that --where gives. UsageError says which one is wrong."""
    states: list[str] = []
    found: dict[str, Any] = {}
    for given in where:
        field, equals, value = given.partition("=")
        if not equals or not value:
            raise click.UsageError(f"--where {given!r} must look like name=charge")
        group, dot, name = field.partition(".")
        if field == "state":
            states += value.split(",")
        elif dot and name and group == "meta":
            found.setdefault("meta", {})[name] = value
        elif dot and name and group == "arg":
            found.setdefault("arguments", {})[name] = _json_or_text(value)
        elif field in _FIELDS:
            target = field.replace("-", "_")
            if target in found:
                raise click.UsageError(f"--where {field} is given twice: one job has one {field}")
            found[target] = _time(given, value) if field in _TIMES else value
        else:
            raise click.UsageError(
                f"--where {given!r}: unknown field {field!r}; the fields are {', '.join(_FIELDS)}, "
                "meta.NAME and arg.NAME"
            )
    return tuple(states), cast(JobCriteria, found)


def _time(given: str, value: str) -> datetime:
    """A time, or an age: how long ago it was."""
    with contextlib.suppress(ValueError):
        return datetime.now(UTC) - timedelta(seconds=parse_duration(value))
    try:
        return datetime.fromisoformat(value).astimezone()
    except ValueError:
        raise click.UsageError(
            f"--where {given!r}: {value!r} is neither a time such as 2030-01-31T08:00 nor an age "
            "such as 2h"
        ) from None


def _json_or_text(value: str) -> Any:
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError):
        return value


# ── acting ────────────────────────────────────────────────────────────────────────────────────────


async def change_matching(ctl: Ctl, kind: str, queue: str | None, options: BulkOptions) -> int:
    """Preview the jobs that match, ask, and change them. Returns the exit code."""
    if queue is None:
        raise click.UsageError("--where needs --queue")
    states, criteria = parse_where(options.where)
    operation = OPERATIONS[kind]
    await ctl.backend.known([queue])
    opened: Queue = await ctl.backend.queue(queue)
    chosen = opened.select(*(states or operation.states), **criteria)
    preview = await ctl.backend.within(chosen.preview())
    if options.dry_run:
        ctl.out.show(_preview_document(queue, preview), partial(_preview, preview))
        _remark(ctl, preview)
        return 0
    n = f"{'' if preview.complete else 'at least '}{text.plural(preview.matched, 'job')}"
    if options.limit is not None:
        n = f"up to {options.limit:,} of {n}"
    nothing = not preview.matched and preview.complete
    confirm(operation.question.format(n=n), yes=options.yes or nothing)
    _remark(ctl, preview)
    total = preview.matched if preview.complete else None
    if options.limit is not None:
        total = options.limit if total is None else min(total, options.limit)
    done = await _carry_out(ctl, operation, chosen, options, total)
    did = operation.did
    document = {
        "queue": queue,
        did: done.changed,
        "skipped": done.skipped,
        "unreadable": done.unreadable,
        "cursor": done.cursor,
    }
    ctl.out.show(document, lambda: f"{text.plural(done.changed, 'job')} of {queue} {did}")
    if done.skipped:
        ctl.out.note(f"{text.plural(done.skipped, 'job')} skipped: no longer in a state for it")
    if done.cursor is not None:
        ctl.out.note(f"there may be more; continue with --cursor {done.cursor}")
    return FAILED if done.skipped else 0


async def _carry_out(
    ctl: Ctl, operation: Operation, chosen: Selection, options: BulkOptions, total: int | None
) -> BulkProgress:
    """Run the operation with a progress bar. Prints its cursor now and then, and when stopped."""
    loop = asyncio.get_running_loop()
    patience = ctl.backend.timeout + (2 / options.pace + 1 if options.pace else 0)
    last: BulkProgress | None = None
    printed, stopping = loop.time(), asyncio.Event()
    with bar_with_remarks(operation.did, total) as (advance, remark):

        def report(progress: BulkProgress) -> None:
            nonlocal last, printed
            deadline.reschedule(loop.time() + patience)
            advance(progress.changed - (0 if last is None else last.changed))
            last = progress
            if progress.cursor is not None and loop.time() - printed >= _REMARK_S:
                remark(_so_far(progress, operation))
                printed = loop.time()

        act = getattr(chosen, operation.verb)
        try:
            async with _stopped_by(stopping), asyncio.timeout(patience) as deadline:
                done: BulkProgress = await act(
                    pace=options.pace,
                    max_jobs=options.limit,
                    cursor=options.cursor,
                    on_progress=report,
                )
        except TimeoutError as e:
            raise StoreUnavailable(
                f"{ctl.backend.shown} did not reply within {ctl.backend.timeout:g} s"
                + ("" if last is None else f"; {_so_far(last, operation)}")
            ) from e
        except asyncio.CancelledError:
            if last is not None and last.cursor is not None:
                remark(_so_far(last, operation))
            if stopping.is_set():
                fail("stopped by SIGTERM")
            raise
    return done


def _so_far(progress: BulkProgress, operation: Operation) -> str:
    return f"{progress.changed:,} {operation.did} so far; continue with --cursor {progress.cursor}"


@contextlib.asynccontextmanager
async def _stopped_by(stopping: asyncio.Event) -> AsyncIterator[None]:
    """Let SIGTERM set the event and cancel the command, so that it prints its cursor."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def stop() -> None:
        stopping.set()
        task.cancel()

    try:
        loop.add_signal_handler(signal.SIGTERM, stop)
    except (NotImplementedError, RuntimeError, ValueError):  # not in the main thread, or Windows
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGTERM)


def _remark(ctl: Ctl, preview: Preview) -> None:
    if preview.unreadable:
        ctl.out.note(
            f"{text.plural(preview.unreadable, 'job')} left out: the arguments cannot be decoded "
            "here"
        )


def _preview_document(queue: str, preview: Preview) -> dict[str, Any]:
    return {
        "queue": queue,
        "matched": preview.matched,
        "complete": preview.complete,
        "looked_at": preview.looked_at,
        "unreadable": preview.unreadable,
        "samples": [_sample(job) for job in preview.samples],
    }


def _sample(job: JobInfo) -> dict[str, Any]:
    return {
        "id": job.id,
        "name": job.name,
        "state": job.state.value,
        "created_at": job.created_at,
        "failure": documents.failure(job.failure),
    }


def _preview(preview: Preview) -> RenderableType:
    more = "" if preview.complete else f", after {preview.looked_at:,} were looked at"
    summary = Text(f"{text.plural(preview.matched, 'job')} would be changed{more}")
    if not preview.samples:
        return summary
    columns = (Column("ID"), Column("NAME"), Column("STATE"), Column("ERROR", shrinks=True))
    return Group(summary, table(columns, list(map(list, _rows(preview.samples)))))


def _rows(samples: Sequence[JobInfo]) -> Iterator[tuple[str, str, Text, str | None]]:
    for job in samples:
        failure = job.failure
        error = None if failure is None else f"{failure.type}: {failure.message}"
        yield job.id, job.name, text.state(job.state), None if error is None else text.clean(error)
