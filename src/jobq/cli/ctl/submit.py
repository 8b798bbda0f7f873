"""`jq-ctl job submit`: enqueue one job, or with `--lines` many."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast, get_args

import click
import msgspec

from jobq.api.job import Job
from jobq.api.queue import Queue
from jobq.cli import text
from jobq.cli.ctl import documents
from jobq.cli.ctl.job_view import job_table
from jobq.cli.options import DURATION, FAILED, USAGE, Command, Ctl, fail, on_store
from jobq.cli.output import bar
from jobq.core.policies import Unique
from jobq.core.records.jobs import UniqueMode
from jobq.core.records.states import State
from jobq.core.rules.options import BY_NAME, Option
from jobq.core.values.checks import shown
from jobq.errors import InvalidJob, JobqError, QueueFull, WaitTimeout

# `jq-ctl job submit --lines`: enqueue many jobs, one JSON value per line.

_BATCH = 1000
"""Jobs per call to the store."""
_LINE_OPTIONS = tuple(name for name, option in BY_NAME.items() if option.cli)
FIELDS = ("name", "args", "kwargs", *_LINE_OPTIONS)


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
    own = {key: value[key] for key in _LINE_OPTIONS if key in value}
    if isinstance(own.get("at"), str):
        own["at"] = _time(number, own["at"])
    if isinstance(own.get("unique"), dict):
        own["unique"] = _unique_of_line(number, own["unique"])
    return JobLine(number, task, tuple(args), kwargs, {**options, **own})


def _time(number: int, value: str) -> datetime:
    try:
        return datetime.fromisoformat(value).astimezone()
    except ValueError as e:
        raise InvalidJob(f'line {number}: "at" must be an ISO 8601 time, not {value!r}') from e


def _unique_of_line(number: int, value: dict[str, Any]) -> Unique:
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


F = TypeVar("F", bound=Callable[..., Any])
UNIQUE_MODES = get_args(UniqueMode)
TIMES = ["%Y-%m-%dT%H:%M:%S%z", "%Y-%m-%dT%H:%M%z", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%dT%H:%M"]


def argument_options(command: F) -> F:
    """Adds --payload and --arg, which `arguments` reads."""
    for option in (
        click.option(
            "-a",
            "--arg",
            "pairs",
            metavar="NAME=VALUE",
            multiple=True,
            help="A keyword argument. VALUE is JSON; anything else is text. Repeat for several.",
        ),
        click.option(
            "--payload",
            metavar="JSON|@FILE|-",
            help="Arguments as JSON: an array of positional or an object of keyword arguments.",
        ),
    ):
        command = option(command)
    return command


def job_options(command: F) -> F:
    """Adds a flag for every option of a job, which `options_given` reads."""
    for option in reversed(_OPTIONS):
        command = click.option(f"--{_flag(option)}", **_attributes(option))(command)
    return command


_OPTIONS = [option for option in BY_NAME.values() if option.cli]


def _flag(option: Option) -> str:
    return option.flag or option.name.replace("_", "-")


def _attributes(option: Option) -> dict[str, Any]:
    """What click must know about the flag of an option."""
    match option.kind:
        case "flag":
            return {"is_flag": True, "default": None, "help": option.help}
        case "count" | "retry":
            return {"type": int, "metavar": "N", "help": option.help}
        case "span":
            return {"type": DURATION, "metavar": "TIME", "help": option.help}
        case "moment":
            example = "e.g. 2030-01-31T08:00 (local) or 2030-01-31T08:00:00Z"
            words = f"{option.help[:-1]}, {example}."
            return {"type": click.DateTime(TIMES), "metavar": "TIME", "help": words}
        case "meta":
            words = f"{option.help} Repeat for several."
            return {"metavar": "NAME=TEXT", "multiple": True, "help": words}
        case "unique":
            return {"metavar": "NAMES", "help": _UNIQUE_HELP}
        case _:
            return {"metavar": option.name.upper(), "help": option.help}


_UNIQUE_HELP = (
    "Add the job only if no other has the same values of these arguments, e.g. tenant,invoice; "
    "* for all arguments. Name the arguments as the task does."
)


def options_given(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of the flags that were given."""
    values = {option.name: given[_flag(option).replace("-", "_")] for option in _OPTIONS}
    values["unique"] = _unique(values["unique"], given["unique_mode"], given["unique_period"])
    values["meta"] = dict(_note(pair) for pair in values["meta"]) or None
    values["at"] = values["at"] and values["at"].astimezone()
    return {name: value for name, value in values.items() if value is not None}


@click.command(
    cls=Command,
    examples="""
    jq-ctl job submit charge -q billing --payload '{"tenant": "acme", "invoice": 7}'
    jq-ctl job submit charge -q billing -a tenant=acme -a invoice=8 --id inv-8 --delay 1h
    jq-ctl job submit resize --payload '["cat.png", 640]' --wait 30s
    jq-ctl job submit charge -q billing --payload @invoice.json
    jq-ctl job submit --queue emails --payload @mail.json --priority 9 --max-retries 5
    jq-ctl job submit charge -q billing -a tenant=acme -a invoice=8 --unique invoice
    jq-ctl job submit charge -q billing --lines invoices.jsonl
    echo '{"name": "charge", "args": [9], "id": "inv-9"}' | jq-ctl job submit -q billing --lines -
    """,
)
@click.argument("name", required=False)
@click.option("-q", "--queue", metavar="NAME", help="Queue of the job. Default: default.")
@argument_options
@click.option(
    "--lines",
    metavar="FILE|-",
    help="Submit many jobs, one JSON value per line: an array of arguments, or an object with "
    f"{', '.join(FIELDS[:6])}, …",
)
@job_options
@click.option(
    "--unique-mode",
    type=click.Choice(UNIQUE_MODES),
    help="What happens to the job if there is such another one: nothing is added until that one "
    "ends (simple, the default) or for a period (throttle), or its data is replaced (debounce, "
    "keep_last).",
)
@click.option(
    "--unique-period",
    type=DURATION,
    metavar="TIME",
    help="Period of --unique-mode throttle and debounce, and the longest time of simple.",
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
    queue: str | None,
    payload: str | None,
    pairs: tuple[str, ...],
    lines: str | None,
    wait: float | None,
    **given: Any,
) -> int:
    """Submit a job of the task NAME, or many jobs from JSON lines.

    Without NAME, the job is of the task that has the same name as the queue: --queue emails
    --payload @mail.json submits a job of the task emails. Both options must be given then.

    A line has the names of the Python API: {"name": …, "args": […], "kwargs": {…}, "id": …,
    "delay": seconds, "priority": …}. The command line sets the options that a line leaves out.
    Lines with an id can be submitted again safely, e.g. after an interruption.
    """
    options = options_given(given)
    target = await ctl.backend.queue("default" if queue is None else queue)
    if lines is not None:
        if payload is not None or pairs or "id" in options or wait is not None:
            raise click.UsageError(
                "--lines cannot be combined with --payload, --arg, --id or --wait"
            )
        return await submit_lines(ctl, target, lines, name, options)
    if name is None and (queue is None or payload is None):
        raise click.UsageError(
            "no task: give its NAME, e.g. jq-ctl job submit charge --payload '{\"invoice\": 7}', "
            "or --queue and --payload for the task that has the name of the queue"
        )
    task = target.name if name is None else name
    args, kwargs = arguments(payload, pairs)
    check_names(options.get("unique"), args)
    handle = await ctl.backend.within(target.task_by_name(task, **options).enqueue(*args, **kwargs))
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


def _unique(names: str | None, mode: str | None, period: float | None) -> Unique | None:
    """The policy that --unique, --unique-mode and --unique-period mean together."""
    if names is None:
        if mode is not None or period is not None:
            raise click.UsageError("--unique-mode and --unique-period need --unique")
        return None
    fields = [] if names == "*" else [name.strip() for name in names.split(",")]
    return Unique(*fields, period=period, mode=cast(UniqueMode, mode or "simple"))


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
    except (msgspec.DecodeError, RecursionError) as e:
        raise click.UsageError(f"{where} is not valid JSON: {e}") from e


def _json_or_text(value: str) -> Any:
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        return value
    except RecursionError as e:
        raise click.UsageError(f"{value[:20]}… is nested too deeply") from e
