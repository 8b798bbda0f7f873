"""`jq-ctl lock …`: who holds a unique lock, and releasing it by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click
from rich.console import RenderableType
from rich.text import Text

from jobq.api.locks import JobLock
from jobq.cli import text
from jobq.cli.ctl.submit import arguments
from jobq.cli.options import FAILED, Ctl, confirm, fail, noun, on_store, yes_option
from jobq.cli.output import details
from jobq.core.rules import locks
from jobq.core.values.codec import JSON

F = TypeVar("F", bound=Callable[..., Any])

lock = noun("lock", "Show who holds a unique lock, and release it.")


def _which(command: F) -> F:
    """The arguments that say which lock is meant."""
    for option in reversed(
        (
            click.argument("task", required=False),
            click.option(
                "-q",
                "--queue",
                metavar="NAME",
                default="default",
                show_default=True,
                help="Queue of the lock.",
            ),
            click.option(
                "-a",
                "--arg",
                "pairs",
                metavar="NAME=VALUE",
                multiple=True,
                help="An argument that the lock is made of. VALUE is JSON; anything else is text. "
                "Repeat for several.",
            ),
            click.option(
                "--job",
                metavar="ID",
                help="The lock that this job needs, instead of a task and arguments.",
            ),
        )
    ):
        command = option(command)
    return command


@lock.command(
    examples="""
    jq-ctl lock show charge -q billing -a invoice=7
    jq-ctl lock show --job inv-7 -q billing
    """
)
@_which
@on_store
async def show(
    ctl: Ctl, task: str | None, queue: str, pairs: tuple[str, ...], job: str | None
) -> int:
    """Show which job holds a unique lock.

    Name all arguments that the task's Unique names, and no others. For a task that is unique by all
    its arguments, name all of them. Use --job for queues whose codec is not json."""
    found = await _lock(ctl, task, queue, pairs, job)
    held = await ctl.backend.within(found.info())
    state = None if held is None or held.job is None else held.job.state
    document = {
        "queue": queue,
        "lock": found.lock,
        "held": held is not None,
        "job": None if held is None else held.job_id,
        "state": None if state is None else state.value,
        "until": None if held is None else held.until,
        "follow_up": None if held is None else held.follow_up,
    }

    def render() -> RenderableType:
        if held is None:
            return Text(f"the lock {found.lock} is free")
        shown = "its record is gone" if state is None else text.state(state)
        return details(
            [
                ("lock", found.lock),
                ("held by", held.job_id),
                ("state", shown),
                ("until", None if held.until is None else held.until.isoformat()),
                ("follow-up", held.follow_up),
            ]
        )

    ctl.out.show(document, render)
    return 0 if held is not None else FAILED


@lock.command(
    examples="""
    jq-ctl lock release charge -q billing -a invoice=7
    jq-ctl lock release --job inv-7 -q billing --yes
    """
)
@_which
@yes_option
@on_store
async def release(
    ctl: Ctl, task: str | None, queue: str, pairs: tuple[str, ...], job: str | None, yes: bool
) -> int:
    """Release a unique lock, so that the next such job is accepted.

    The job that held the lock goes on. To stop it, cancel it: that releases its lock, too."""
    found = await _lock(ctl, task, queue, pairs, job)
    held = await ctl.backend.within(found.info())
    if held is None:
        fail(f"the lock {found.lock} is free")
    confirm(f"Release the lock that job {held.job_id} holds?", yes=yes)
    done = await ctl.backend.within(found.release(job_id=held.job_id))
    ctl.out.show(
        {"queue": queue, "lock": found.lock, "job": held.job_id, "released": done},
        lambda: Text(
            f"lock of job {held.job_id} released"
            if done
            else f"not released: job {held.job_id} does not hold the lock any more"
        ),
    )
    return 0 if done else FAILED


async def _lock(
    ctl: Ctl, task: str | None, queue: str, pairs: tuple[str, ...], job: str | None
) -> JobLock:
    """The lock that the command line names. UsageError says what is missing."""
    await ctl.backend.known([queue])
    context = (await ctl.backend.queue(queue))._context
    if job is not None:
        if task is not None or pairs:
            raise click.UsageError("give a TASK and its arguments, or --job, not both")
        (record,) = await ctl.backend.locate([job], queue)
        if record.options.unique is None:
            fail(f"job {job} ({record.name}) has no unique lock")
        return JobLock(context, record.options.unique.lock)
    if task is None:
        raise click.UsageError("no task: give its name and arguments, or --job")
    _, values = arguments(None, pairs)
    return JobLock(context, locks.unique_lock(tuple(values), task, values, JSON))
