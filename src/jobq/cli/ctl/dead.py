"""`jq-ctl dead …`: dead letters, which are a queue's failed jobs.

A failed job stays in its queue until someone reruns or purges it, or until its retention ends."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence

import click
from rich.console import RenderableType

from jobq.cli import text
from jobq.cli.ctl import documents
from jobq.cli.ctl.job_view import error
from jobq.cli.options import DURATION, FAILED, Ctl, confirm, noun, on_store, yes_option
from jobq.cli.output import Column, bar, table
from jobq.core.records.criteria import Criteria
from jobq.core.records.jobs import JobRecord
from jobq.core.records.states import State
from jobq.operations import failures, jobs
from jobq.operations.bulk import OPERATIONS, BulkChange, BulkProgress, Operation, preview
from jobq.operations.listing import Matching

_PREVIEW = 10_000
"""Jobs that are looked at before the question: about a second. A state alone is counted."""

dead = noun(
    "dead",
    "Dead letters: jobs that failed for good. List them, run them again, or remove them.",
)

_queues_option = click.option(
    "-q",
    "--queue",
    "queues",
    metavar="NAME",
    multiple=True,
    help="Only this queue. Repeat for several. Default: all queues.",
)
_name_option = click.option(
    "--name", metavar="TASK", help="Only jobs of this task; * stands for any text."
)
_all_option = click.option(
    "--all", "every", is_flag=True, help="All failed jobs that match, instead of ids."
)


@dead.command(
    "list",
    examples="""
    jq-ctl dead list -q billing
    jq-ctl dead list --by-error          # one line per cause, with the number of jobs
    """,
)
@_queues_option
@_name_option
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    metavar="N",
    help="Maximum jobs per queue.",
)
@click.option("--by-error", is_flag=True, help="Count all failed jobs by task and cause.")
@on_store
async def list_(
    ctl: Ctl, queues: tuple[str, ...], name: str | None, limit: int, by_error: bool
) -> None:
    """List failed jobs with their errors, latest first."""
    if by_error:
        await _by_error(ctl, queues, name)
        return
    records = [r async for r in _failed(ctl, queues, name, limit=limit)]
    ctl.out.show([documents.job(r) for r in records], lambda: _table(records))
    ctl.out.note(
        "jq-ctl job status ID shows the traceback; jq-ctl dead rerun ID runs the job again"
        if records
        else "no failed jobs"
    )


@dead.command(
    examples="""
    jq-ctl dead rerun inv-8 inv-9
    jq-ctl dead rerun --all -q billing --name charge
    """
)
@click.argument("ids", metavar="[ID...]", nargs=-1)
@_queues_option
@_name_option
@_all_option
@yes_option
@on_store
async def rerun(
    ctl: Ctl,
    ids: tuple[str, ...],
    queues: tuple[str, ...],
    name: str | None,
    every: bool,
    yes: bool,
) -> int:
    """Run failed jobs again from the start (alias: retry)."""
    _check_choice(ids, every)
    if every:
        return await _every(ctl, queues, _wanted(name), "rerun", yes=yes)
    return await _named(ctl, ids, queues, "rerun", yes=yes)


@dead.command(
    examples="""
    jq-ctl dead purge inv-8 --yes
    jq-ctl dead purge --all -q billing --older-than 7d
    """
)
@click.argument("ids", metavar="[ID...]", nargs=-1)
@_queues_option
@_name_option
@_all_option
@click.option(
    "--older-than",
    type=DURATION,
    metavar="TIME",
    default=0.0,
    help="With --all: only jobs that failed at least this long ago, e.g. 7d.",
)
@yes_option
@on_store
async def purge(
    ctl: Ctl,
    ids: tuple[str, ...],
    queues: tuple[str, ...],
    name: str | None,
    every: bool,
    older_than: float,
    yes: bool,
) -> int:
    """Remove failed jobs for good."""
    _check_choice(ids, every)
    if every:
        return await _every(ctl, queues, _wanted(name, older_than), "remove", yes=yes)
    return await _named(ctl, ids, queues, "remove", yes=yes)


def _check_choice(ids: Sequence[str], every: bool) -> None:
    if every == bool(ids):
        raise click.UsageError("give ids of failed jobs, or --all")


async def _named(
    ctl: Ctl, ids: Sequence[str], queues: Sequence[str], kind: str, *, yes: bool
) -> int:
    """Apply a command to the failed jobs with these ids. Print the counts."""
    operation = OPERATIONS[kind]
    selected = await ctl.backend.locate(ids, queues[0] if queues else None)
    question = operation.question.format(n=text.plural(len(selected), "failed job"))
    confirm(question, yes=yes or kind == "rerun")
    failed = [r for r in selected if r.state is State.FAILED]
    with bar(operation.did, len(failed)) as advance:
        done = await jobs.change(ctl.backend.store, kind, failed, ctl.backend.actor, advance)
    code = _counted(ctl, operation, len(selected), done)
    if skipped := [r.id for r in selected if r.state is not State.FAILED]:
        ctl.out.note(f"skipped, because they are not failed: {', '.join(skipped)}")
    return code


async def _every(ctl: Ctl, queues: Sequence[str], wanted: Criteria, kind: str, *, yes: bool) -> int:
    """Apply a command to all failed jobs that match, each once. Print the counts."""
    store, operation = ctl.backend.store, OPERATIONS[kind]
    names = [record.queue for record in await ctl.backend.known(queues)]
    previews = [
        await preview(store, name, Matching(store, name, wanted), samples=0, max_jobs=_PREVIEW)
        for name in names
    ]
    number, complete = sum(p.matched for p in previews), all(p.complete for p in previews)
    n = f"{'' if complete else 'at least '}{text.plural(number, 'failed job')}"
    confirm(operation.question.format(n=n), yes=yes or (complete and not number))
    done = skipped = 0
    with bar(operation.did, number if complete else None) as advance:
        for name in names:
            before = 0

            def report(progress: BulkProgress) -> None:
                nonlocal before
                now = progress.changed + progress.skipped
                advance(now - before)
                before = now

            ended = await BulkChange(
                store,
                name,
                wanted,
                kind,
                actor=ctl.backend.actor,
                now_ms=int(time.time() * 1000),
                on_progress=report,
            ).run()
            done, skipped = done + ended.changed, skipped + ended.skipped
    return _counted(ctl, operation, done + skipped, done)


def _counted(ctl: Ctl, operation: Operation, matched: int, done: int) -> int:
    did = operation.did
    ctl.out.show(
        {"matched": matched, did: done},
        lambda: f"{did}: {done:,} of {text.plural(matched, 'failed job')}",
    )
    return 0 if done == matched else FAILED


def _wanted(name: str | None, older_than: float = 0) -> Criteria:
    before_ms = int((time.time() - older_than) * 1000) + 1 if older_than else None
    return Criteria(states=(State.FAILED,), name=name, ended_before_ms=before_ms)


async def _failed(
    ctl: Ctl, queues: Sequence[str], name: str | None, *, limit: int | None = None
) -> AsyncIterator[JobRecord]:
    for queue in await ctl.backend.known(queues):
        matching = Matching(ctl.backend.store, queue.queue, _wanted(name))
        async for record in matching.records(limit):
            yield record


def _table(records: Sequence[JobRecord]) -> RenderableType:
    now = int(time.time() * 1000)
    columns = (
        Column("ID"),
        Column("QUEUE"),
        Column("NAME"),
        Column("RUNS", right=True, spare=2),
        Column("FAILED"),
        Column("REASON", spare=1),
        Column("ERROR", shrinks=True),
    )
    return table(
        columns,
        [
            [
                r.id,
                r.queue.queue,
                r.name,
                r.attempt,
                text.relative(r.finished_ms, now),
                _reason(r),
                error(r),
            ]
            for r in records
        ],
    )


def _reason(record: JobRecord) -> str | None:
    return None if record.failure is None else record.failure.reason


async def _by_error(ctl: Ctl, queues: Sequence[str], name: str | None) -> None:
    """Group failed jobs by fingerprint, which is equal for failures of the same cause.

    Each group shows its latest job as the example."""
    causes = failures.Causes()
    async for record in _failed(ctl, queues, name):
        causes.add([record])
    groups = causes.largest_first()
    now = int(time.time() * 1000)
    columns = (
        Column("JOBS", right=True),
        Column("QUEUE"),
        Column("NAME"),
        Column("LATEST"),
        Column("EXAMPLE"),
        Column("ERROR", shrinks=True),
    )
    ctl.out.show(
        [
            {
                "jobs": group.jobs,
                "queue": group.cause.queue.queue,
                "name": group.cause.name,
                "fingerprint": group.cause.fingerprint,
                "latest": documents.job(group.newest),
            }
            for group in groups
        ],
        lambda: table(
            columns,
            [
                [
                    group.jobs,
                    group.cause.queue.queue,
                    group.cause.name,
                    text.relative(group.newest.finished_ms, now),
                    group.newest.id,
                    error(group.newest),
                ]
                for group in groups
            ],
        ),
    )
    if not groups:
        ctl.out.note("no failed jobs")
