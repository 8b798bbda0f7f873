"""How jobs are printed: one row per job, or everything about one job."""

from __future__ import annotations

import time
from collections.abc import Sequence

import msgspec
from rich.console import Group, RenderableType
from rich.text import Text

from jobq.cli import text
from jobq.cli.ctl import documents
from jobq.cli.output import Cell, Column, details, table
from jobq.core.records.jobs import Failure, JobRecord, RetryData
from jobq.core.records.states import State
from jobq.core.rules.deferral import sentence
from jobq.core.rules.options import APPLIED, Option
from jobq.core.rules.waits import StepRecord, readable

_COLUMNS = (
    Column("ID"),
    Column("QUEUE"),
    Column("NAME"),
    Column("STATE"),
    Column("PRIO", right=True, spare=2),
    Column("RUNS", right=True, spare=1),
    Column("WHEN"),
    Column("ABOUT", shrinks=True),
)


_BY_WORKER = "as declared by the task"
_STEPS = (
    Column("STEP"),
    Column("RUN", right=True),
    Column("WHEN"),
    Column("RESULT", shrinks=True),
)
_ERRORS = (
    Column("RUN", right=True),
    Column("WHEN"),
    Column("WORKER"),
    Column("REASON"),
    Column("ERROR", shrinks=True),
)


def job_table(records: Sequence[JobRecord]) -> RenderableType:
    """A table with one row per job."""
    now = int(time.time() * 1000)
    return table(_COLUMNS, [_row(record, now) for record in records])


def _row(record: JobRecord, now: int) -> list[Cell]:
    return [
        record.id,
        record.queue.queue,
        record.name,
        text.state(record.state),
        text.count(record.priority),
        text.count(record.attempt),
        _when(record, now),
        about(record),
    ]


def _when(record: JobRecord, now: int) -> str:
    """The time that matters in the job's state: due, started or finished."""
    match record.state:
        case State.DELAYED:
            return text.relative(record.due_ms, now)
        case State.ACTIVE:
            return f"for {text.duration(max(0, now - (record.started_ms or now)))}"
        case State.WAITING | State.BLOCKED:
            return text.relative(record.due_ms or record.created_ms, now)
        case _:
            return text.relative(record.finished_ms, now)


def about(record: JobRecord) -> Cell:
    """The most useful fact about a job in its state, in one line."""
    match record.state:
        case State.FAILED if record.failure is not None:
            return Text(f"{record.failure.reason}: {error(record)}", style="red")
        case State.COMPLETED:
            return brief(documents.decode(record.result, record.codec))
        case State.CANCELLED:
            return record.reason
        case State.ACTIVE:
            progress = (
                ""
                if record.progress is None
                else f" · {brief(documents.decode(record.progress, record.codec))}"
            )
            return (
                f"on {record.worker}{progress}{' · asked to stop' if record.cancel_asked else ''}"
            )
        case _ if (why := sentence(record)) is not None:
            return Text(text.clean(why), style="yellow")
        case _ if record.failure is not None:
            return Text(f"last: {error(record)}", style="yellow")
        case _:
            return call(record)


def _deferred(record: JobRecord) -> Text | None:
    why = sentence(record)
    return None if why is None else Text(text.clean(why), style="yellow")


def error(record: JobRecord) -> str:
    """The error's type and message, e.g. `ValueError: no such tenant`."""
    return (
        ""
        if record.failure is None
        else text.clean(f"{record.failure.type}: {record.failure.message}")
    )


def call(record: JobRecord) -> str:
    """The arguments as in a Python call, e.g. `"acme", invoice=7`."""
    args, kwargs = documents.arguments(record)
    if not isinstance(args, list) or not isinstance(kwargs, dict):
        return brief(args)
    return ", ".join([*(brief(a) for a in args), *(f"{k}={brief(v)}" for k, v in kwargs.items())])


def brief(value: object) -> str:
    """A value as one line of JSON, cut at 200 characters."""
    line = msgspec.json.encode(value).decode()
    return text.clean(line if len(line) <= 200 else line[:199] + "…")


def job_details(record: JobRecord) -> RenderableType:
    """Everything about a job, with its last traceback and its failed runs."""
    now = int(time.time() * 1000)

    def moment(ms: int | None) -> str | None:
        return None if ms is None else f"{text.iso(ms)}  ({text.relative(ms, now)})"

    ran = None
    if record.started_ms and record.finished_ms:
        ran = text.duration(record.finished_ms - record.started_ms)
    parts: list[RenderableType] = [
        details(
            [
                ("Job", record.id),
                ("Queue", record.queue.queue),
                ("Task", record.name),
                ("State", text.state(record.state)),
                ("Reason", record.reason),
                ("Deferred", _deferred(record)),
                ("Arguments", call(record) or "none"),
                (
                    "Result",
                    brief(documents.decode(record.result, record.codec))
                    if record.result is not None
                    else None,
                ),
                (
                    "Progress",
                    brief(documents.decode(record.progress, record.codec))
                    if record.progress is not None
                    else None,
                ),
                (
                    "Saved",
                    brief(documents.decode(record.saved, record.codec))
                    if record.saved is not None
                    else None,
                ),
                ("Priority", record.priority),
                ("Key", record.key),
                *_options(record),
                (
                    "Runs",
                    f"{record.attempt} ({text.plural(record.failures, 'failure')}, "
                    f"{text.plural(record.stalls, 'stall')})",
                ),
                ("Life", record.life if record.life > 1 else None),
                ("Created", moment(record.created_ms)),
                ("Due", moment(record.due_ms)),
                ("Started", moment(record.started_ms)),
                ("Finished", moment(record.finished_ms)),
                ("Ran for", ran),
                ("Worker", record.worker),
                (
                    "Meta",
                    ", ".join(f"{name}={value}" for name, value in record.meta.items())
                    if record.meta
                    else None,
                ),
                ("Schedule", record.schedule),
                ("Copy of", record.origin),
                (
                    "Asked to stop",
                    "yes" if record.cancel_asked and not record.state.ended else None,
                ),
                ("Waits for", ", ".join(k.id for k in record.children) or None),
                ("Needed by", ", ".join(k.id for k in record.parents) or None),
                (
                    "Failure",
                    Text(f"{record.failure.reason}: {error(record)}", style="red")
                    if record.failure
                    else None,
                ),
                ("Retries left", "no" if record.failure and record.failure.exhausted else None),
            ]
        )
    ]
    if record.steps:
        rows = [_step_row(name, step, record, now) for name, step in readable(record.steps)]
        parts += [Text(), Text("Steps"), table(_STEPS, rows)]
    if record.failure is not None and record.failure.traceback:
        # Imported here: it loads a syntax highlighter that no other command needs.
        from rich.syntax import Syntax

        traceback = text.clean_lines(record.failure.traceback.rstrip())
        parts += [
            Text(),
            Syntax(
                traceback, "pytb", theme="ansi_dark", background_color="default", word_wrap=True
            ),
        ]
    if len(record.errors) > 1:
        parts += [
            Text(),
            Text("Failed runs"),
            table(_ERRORS, [_error_row(failed, now) for failed in record.errors]),
        ]
    return Group(*parts)


def _options(record: JobRecord) -> list[tuple[str, str | int | None]]:
    """Options that differ from their default, and those that the worker's task decides."""
    return [(option.label, _option(option, record)) for option in APPLIED if option.label]


def _option(option: Option, record: JobRecord) -> str | int | None:
    value = option.of(record)
    if value == option.default:
        return _BY_WORKER if option.by_worker else None
    match option.kind:
        case "span":
            return text.duration(value) if value else "none"
        case "flag":
            return "yes"
        case "retry":
            return f"up to {value.max_retries}, {_waits(value)}"
        case "unique":
            period = (
                text.duration(value.ttl_ms) if value.ttl_ms else "as long as the job is unfinished"
            )
            return f"{value.mode}, for {period}"
        case _:
            assert isinstance(value, (str, int))
            return value


def _waits(retry: RetryData) -> str:
    if retry.delays_ms is not None:
        return f"after {', '.join(text.duration(ms) for ms in retry.delays_ms)}"
    return (
        f"after {text.duration(retry.base_ms)}, then {retry.factor:g} times longer, "
        f"up to {text.duration(retry.cap_ms)}"
    )


def _step_row(name: str, step: StepRecord, record: JobRecord, now: int) -> list[Cell]:
    return [
        text.clean(name),
        text.count(step.attempt),
        text.relative(step.at_ms, now),
        brief(documents.decode(step.result, record.codec)),
    ]


def _error_row(failed: Failure, now: int) -> list[Cell]:
    words = text.clean(f"{failed.type}: {failed.message}")
    return [
        text.count(failed.attempt),
        text.relative(failed.at_ms, now),
        failed.worker,
        failed.reason,
        words,
    ]
