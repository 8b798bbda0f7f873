"""`jq-ctl job …`: inspect jobs, read their logs and act on them. `job submit` is in submit.py."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import click
from rich.console import Group, RenderableType
from rich.text import Text

from jobq.cli import text
from jobq.cli.ctl import documents
from jobq.cli.ctl.bulk import (
    BulkOptions,
    bulk_options,
    change_matching,
    parse_where,
    where_option,
)
from jobq.cli.ctl.job_view import job_details, job_table
from jobq.cli.ctl.submit import submit, value_of
from jobq.cli.options import (
    DURATION,
    FAILED,
    Command,
    Ctl,
    noun,
    on_store,
    queue_option,
    yes_option,
)
from jobq.cli.options import confirm as ask
from jobq.client.following import new_lines
from jobq.core.records.commands import (
    AnyCommand,
    Cancel,
    Promote,
    Remove,
    Reprioritise,
    Rerun,
)
from jobq.core.records.jobs import JobKey, JobRecord
from jobq.core.records.states import State
from jobq.errors import WaitTimeout
from jobq.operations import listing
from jobq.operations.selecting import make_criteria


@click.command(
    cls=Command,
    examples="""
    jq-ctl job logs inv-8
    jq-ctl job logs inv-8 --tail 20 --follow
    """,
)
@click.argument("id")
@queue_option
@click.option("-f", "--follow", is_flag=True, help="Keep printing new lines until the job ends.")
@click.option("--head", type=click.IntRange(min=1), metavar="N", help="Only the first N lines.")
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N lines.")
@on_store
async def logs(
    ctl: Ctl, id: str, queue: str | None, follow: bool, head: int | None, tail: int | None
) -> None:
    """Print what the job's handler logged. The store keeps the last 1,000 lines."""
    if head is not None and (follow or tail is not None):
        raise click.UsageError("--head cannot be combined with --tail or --follow")
    (record,) = await ctl.backend.locate([id], queue)
    key = JobKey(record.queue, record.id)
    if follow:
        await _follow(ctl, key, tail)
        return
    lines = (await ctl.backend.store.logs(key))[:head]
    lines = _last(lines, tail)
    ctl.out.show(lines, lambda: Text(text.clean_lines("\n".join(lines))) if lines else None)
    if not lines:
        ctl.out.note(f"job {id} logged nothing")


def _last(lines: list[str], count: int | None) -> list[str]:
    return lines if count is None else lines[max(0, len(lines) - count) :]


async def _follow(ctl: Ctl, key: JobKey, tail: int | None) -> None:
    """Print log lines until the job ends, at first only the last `tail` ones.

    The state is read before the lines: if the job has ended, these are its last lines."""
    shown: list[str] | None = None
    while True:
        (record,) = await ctl.backend.store.get([key])
        lines = await ctl.backend.store.logs(key)
        for line in _last(lines, tail) if shown is None else new_lines(shown, lines):
            ctl.out.stream(line, partial(Text, text.clean_lines(line)))
        if record is None or record.state.ended:
            return
        shown = lines
        await asyncio.sleep(0.5)  # poll: stores send signals for transitions, not for log lines


job = noun("job", "Submit, inspect, cancel and rerun jobs.")
job.add_command(submit)
STATUSES = {
    "pending": "waiting,delayed,blocked",
    "running": "active",
    "done": "completed",
    "failed": "failed",
}
"""The names of --status, and the states that each means."""
ids_argument = click.argument("ids", metavar="ID...", nargs=-1, required=True)
ids_or_where = click.argument("ids", metavar="[ID...]", nargs=-1)


# ── looking ───────────────────────────────────────────────────────────────────────────────────────


@job.command(
    "list",
    examples="""
    jq-ctl job list
    jq-ctl job list -q billing --state failed --limit 200
    jq-ctl job list --where error='Timeout*' --where meta.tenant=acme --oldest-first
    jq-ctl job list --state waiting -o json | jq -r '.[].id'
    """,
)
@click.option(
    "-q",
    "--queue",
    "queues",
    metavar="NAME",
    multiple=True,
    help="Only this queue. Repeat for several. Default: all queues.",
)
@click.option(
    "--state", type=click.Choice([s.value for s in State]), help="Only jobs in this state."
)
@click.option(
    "--status",
    type=click.Choice(list(STATUSES)),
    help="Only jobs with this status: pending (waiting, delayed or blocked), running (active), "
    "done (completed) or failed.",
)
@click.option("--name", metavar="TASK", help="Only jobs of this task. * stands for any text.")
@click.option("--key", metavar="KEY", help="Only jobs with this concurrency key.")
@where_option
@click.option("--oldest-first", is_flag=True, help="List the oldest jobs of each state first.")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    metavar="N",
    help="Maximum jobs per queue.",
)
@on_store
async def list_(
    ctl: Ctl,
    queues: tuple[str, ...],
    state: str | None,
    status: str | None,
    name: str | None,
    key: str | None,
    where: tuple[str, ...],
    oldest_first: bool,
    limit: int,
) -> None:
    """List jobs, newest first."""
    if state is not None and status is not None:
        raise click.UsageError("--state and --status: give one of them")
    state = state if status is None else STATUSES[status]
    for field, value in (("state", state), ("name", name), ("key", key)):
        if value is not None:
            where = (*where, f"{field}={value}")
    wanted = make_criteria(*parse_where(where))
    records: list[JobRecord] = []
    full: list[str] = []
    names = [record.queue for record in await ctl.backend.known(queues)]
    async for queue, found in listing.of_queues(
        ctl.backend.store, names, wanted, limit=limit, oldest_first=oldest_first
    ):
        if len(found) == limit:
            full.append(queue.queue)
        records += found
    ctl.out.show([documents.job(r) for r in records], lambda: job_table(records))
    if not records:
        ctl.out.note("no jobs match")
    elif full:
        ctl.out.note(f"only {limit} jobs shown of {', '.join(full)}; use --limit to see more")


@job.command(examples="jq-ctl job status inv-8\njq-ctl job status inv-8 -q billing -o yaml")
@click.argument("id")
@queue_option
@on_store
async def status(ctl: Ctl, id: str, queue: str | None) -> None:
    """Show one job: arguments, result, errors and times."""
    (record,) = await ctl.backend.locate([id], queue)
    ctl.out.show(documents.job(record), lambda: job_details(record))


job.add_command(logs)


@job.command(
    examples="""
    jq-ctl job wait inv-8
    jq-ctl job wait inv-8 inv-9 --for 5m && echo paid
    """
)
@ids_argument
@queue_option
@click.option(
    "--for",
    "patience",
    type=DURATION,
    metavar="TIME",
    help="How long to wait, e.g. 5m. Default: until all have ended.",
)
@on_store
async def wait(ctl: Ctl, ids: tuple[str, ...], queue: str | None, patience: float | None) -> int:
    """Wait until jobs have ended. Exit code 0 if all of them completed, otherwise 1."""
    found = await ctl.backend.locate(ids, queue)
    end = None if patience is None else time.monotonic() + patience
    late: list[str] = []
    for record in found:
        handle = (await ctl.backend.queue(record.queue.queue)).job(record.id)
        try:
            await handle.wait(timeout=None if end is None else max(0.001, end - time.monotonic()))
        except WaitTimeout:
            late.append(record.id)
    now = await ctl.backend.locate(ids, queue)
    ctl.out.show([documents.job(r) for r in now], lambda: job_table(now))
    if late:
        ctl.out.note(f"still unfinished: {', '.join(late)}")
    return 0 if all(record.state is State.COMPLETED for record in now) else FAILED


# ── acting ────────────────────────────────────────────────────────────────────────────────────────


async def alter(
    ctl: Ctl,
    ids: Sequence[str],
    queue: str | None,
    command: Callable[[JobKey], AnyCommand],
    did: str,
    why_not: str,
) -> int:
    """Apply one command to each job and print the result of each.

    Returns exit code 1 if the command did not apply to every job."""
    found = await ctl.backend.locate(list(dict.fromkeys(ids)), queue)
    keys = [JobKey(record.queue, record.id) for record in found]
    results = await ctl.backend.alter(command(key) for key in keys)
    now = await ctl.backend.store.get(keys)
    states = [None if record is None else record.state for record in now]
    outcome = [
        {
            "queue": k.queue.queue,
            "id": k.id,
            "applied": result == "done",
            "state": None if state is None else state.value,
        }
        for k, result, state in zip(keys, results, states, strict=True)
    ]

    def render() -> RenderableType:
        lines = []
        for key, result, before, state in zip(keys, results, found, states, strict=True):
            applied = result == "done"
            line = Text(f"{key.id} ") + Text(
                did if applied else f"not {did}", style="green" if applied else "red"
            )
            if result == "missing":
                line += Text(": the job was removed in the meantime")
            elif not applied:
                line += Text(f": it is {before.state.value}; {why_not}")
            elif state is not None and state is not before.state:
                line += Text(", now ") + text.state(state)
            elif state is State.ACTIVE:
                line += Text(", still running until its handler stops", style="bright_black")
            lines.append(line)
        return Group(*lines)

    ctl.out.show(outcome, render)
    return 0 if all(result == "done" for result in results) else FAILED


@job.command(
    examples="""
    jq-ctl job cancel inv-8 inv-9
    jq-ctl job cancel month-end --cascade
    jq-ctl job cancel -q billing --where name='report.*' --where meta.tenant=acme --dry-run
    """
)
@ids_or_where
@queue_option
@click.option(
    "--cascade", is_flag=True, help="Also cancel the jobs it waits for, and its children."
)
@bulk_options
@on_store
async def cancel(
    ctl: Ctl, /, ids: tuple[str, ...], queue: str | None, cascade: bool, **bulk: Any
) -> int:
    """Cancel jobs. A running job's handler is asked to stop; any other job ends at once.

    Give ids, or --where for all unfinished jobs of a queue that match."""
    options = BulkOptions(**bulk)
    if options.refuse_ids(ids):
        if cascade:
            raise click.UsageError("--cascade cannot be combined with --where")
        return await change_matching(ctl, "cancel", queue, options)
    return await alter(
        ctl,
        ids,
        queue,
        lambda key: Cancel(job=key, cascade=cascade),
        "cancelled",
        "only unfinished jobs can be cancelled",
    )


@job.command(
    examples="""
    jq-ctl job rerun inv-8
    jq-ctl job rerun -q billing --where error='Timeout*' --where ended-after=2h --dry-run
    jq-ctl job rerun -q billing --where error='Timeout*' --where ended-after=2h --pace 50
    """
)
@ids_or_where
@queue_option
@bulk_options
@on_store
async def rerun(ctl: Ctl, /, ids: tuple[str, ...], queue: str | None, **bulk: Any) -> int:
    """Run ended jobs again from the start (alias: retry).

    Give ids, or --where for all failed jobs of a queue that match. --where state=completed means
    jobs in another state."""
    options = BulkOptions(**bulk)
    if options.refuse_ids(ids):
        return await change_matching(ctl, "rerun", queue, options)
    return await alter(
        ctl,
        ids,
        queue,
        lambda key: Rerun(job=key),
        "set to run again",
        "only jobs that have ended, and whose unique lock is free, can run again",
    )


@job.command(examples="jq-ctl job promote reminder-77")
@ids_argument
@queue_option
@on_store
async def promote(ctl: Ctl, ids: tuple[str, ...], queue: str | None) -> int:
    """Make delayed jobs due now instead of at their time."""
    return await alter(
        ctl,
        ids,
        queue,
        lambda key: Promote(job=key),
        "promoted",
        "only delayed jobs can be promoted",
    )


@job.command(examples="jq-ctl job reprioritise inv-8 --priority 9")
@ids_argument
@queue_option
@click.option(
    "--priority", type=int, metavar="N", required=True, help="New priority. Higher runs first."
)
@on_store
async def reprioritise(ctl: Ctl, ids: tuple[str, ...], queue: str | None, priority: int) -> int:
    """Change the priority of jobs that have not started."""
    from jobq.core.values.checks import check_priority

    priority = check_priority(priority)
    return await alter(
        ctl,
        ids,
        queue,
        lambda key: Reprioritise(job=key, priority=priority),
        "moved",
        "only jobs that have not started can change priority",
    )


@job.command(
    examples="""
    jq-ctl job signal order-7 paid
    jq-ctl job signal order-7 approved '{"by": "ada"}'
    jq-ctl job signal order-7 approved @approval.json
    """
)
@click.argument("id")
@click.argument("name")
@click.argument("data", metavar="[DATA|@FILE|-]", required=False)
@queue_option
@on_store
async def signal(ctl: Ctl, id: str, name: str, data: str | None, queue: str | None) -> int:
    """Send the signal NAME to a job that calls wait_for_signal.

    The store keeps the signal until the handler asks for it. DATA is JSON; anything that is not
    valid JSON is sent as text."""
    (record,) = await ctl.backend.locate([id], queue)
    handle = (await ctl.backend.queue(record.queue.queue)).job(record.id)
    sent = await ctl.backend.within(handle.signal(name, None if data is None else value_of(data)))
    (now,) = await ctl.backend.locate([id], record.queue.queue)
    outcome = {
        "queue": now.queue.queue,
        "id": id,
        "signal": name,
        "applied": sent,
        "state": now.state.value,
    }
    message = (
        f"signal {name} sent to {id}, which is "
        if sent
        else f"signal {name} not sent: only unfinished jobs take signals, and {id} is "
    )
    ctl.out.show(outcome, lambda: Text(message) + text.state(now.state))
    return 0 if sent else FAILED


@job.command(examples="jq-ctl job remove inv-8 --yes")
@ids_argument
@queue_option
@yes_option
@on_store
async def remove(ctl: Ctl, ids: tuple[str, ...], queue: str | None, yes: bool) -> int:
    """Remove the records of ended jobs. Waiting jobs are cancelled; running jobs are left alone."""
    ask(f"Remove {text.plural(len(ids), 'job')}?", yes=yes)
    return await alter(
        ctl,
        ids,
        queue,
        lambda key: Remove(job=key),
        "removed",
        "a running job must be cancelled first",
    )


@job.command(
    examples="""
    jq-ctl job purge -q billing --where ended-before=7d --dry-run
    jq-ctl job purge -q billing --where state=completed,cancelled --where ended-before=1h --pace 500
    """
)
@queue_option
@bulk_options
@on_store
async def purge(ctl: Ctl, /, queue: str | None, **bulk: Any) -> int:
    """Remove all jobs of a queue that match, by default failed ones.

    The records of ended jobs are deleted; waiting, delayed and blocked jobs are cancelled. Running
    jobs cannot be purged: cancel them."""
    options = BulkOptions(**bulk)
    if not options.where:
        raise click.UsageError("no --where: say which jobs to remove, e.g. --where ended-before=7d")
    return await change_matching(ctl, "remove", queue, options)
