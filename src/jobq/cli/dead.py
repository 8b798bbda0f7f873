"""`jq-ctl dead …`: dead letters, which are a queue's failed jobs.

A failed job stays in its queue until someone reruns or purges it, or until its retention ends."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence

import click
from rich.console import RenderableType

from jobq.cli import documents, text
from jobq.cli.job_view import error
from jobq.cli.options import DURATION, FAILED, Ctl, confirm, noun, on_store, yes_option
from jobq.cli.output import Column, table
from jobq.cli.progress import bar
from jobq.core.records import JobRecord
from jobq.core.states import State
from jobq.operations import failures, jobs
from jobq.operations.bulk import OPERATIONS

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
_name_option = click.option("--name", metavar="TASK", help="Only jobs of this task.")
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
    return await _each(ctl, ids, queues, name, every, yes, "rerun")


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
    return await _each(
        ctl,
        ids,
        queues,
        name,
        every,
        yes,
        "remove",
        older_than=older_than,
    )


async def _each(
    ctl: Ctl,
    ids: Sequence[str],
    queues: Sequence[str],
    name: str | None,
    every: bool,
    yes: bool,
    kind: str,
    *,
    older_than: float = 0,
) -> int:
    """Apply a command to the failed jobs with these ids, or to all that match. Print the counts."""
    if every == bool(ids):
        raise click.UsageError("give ids of failed jobs, or --all")
    operation = OPERATIONS[kind]
    did = operation.did
    before = int((time.time() - older_than) * 1000)
    if every:
        selected = [
            r
            async for r in _failed(ctl, queues, name)
            if not older_than or (r.finished_ms or 0) <= before
        ]
    else:
        selected = await ctl.backend.locate(ids, queues[0] if queues else None)
    confirm(
        operation.question.format(n=text.plural(len(selected), "failed job")),
        yes=yes or (bool(ids) and kind == "rerun") or not selected,
    )
    failed = [r for r in selected if r.state is State.FAILED]
    with bar(did, len(failed)) as advance:
        done = await jobs.change(ctl.backend.store, kind, failed, ctl.backend.actor, advance)
    ctl.out.show(
        {"matched": len(selected), did: done},
        lambda: f"{did}: {done:,} of {text.plural(len(selected), 'failed job')}",
    )
    if skipped := [r.id for r in selected if r.state is not State.FAILED]:
        ctl.out.note(f"skipped, because they are not failed: {', '.join(skipped)}")
    return 0 if done == len(selected) else FAILED


async def _failed(
    ctl: Ctl, queues: Sequence[str], name: str | None, *, limit: int | None = None
) -> AsyncIterator[JobRecord]:
    for queue in await ctl.backend.known(queues):
        async for page in failures.failed(ctl.backend.store, queue.queue, name, limit=limit):
            for record in page:
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
