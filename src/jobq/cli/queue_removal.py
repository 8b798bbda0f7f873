"""`jq-ctl queue clear`, `clean`, `delete` and `obliterate`: remove jobs, or a whole queue."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import click

from jobq.cli import text
from jobq.cli.options import DURATION, Ctl, confirm, fail, on_store, yes_option
from jobq.cli.progress import bar
from jobq.cli.queue import name_argument, queue, summaries
from jobq.cli.queue_view import QueueSummary
from jobq.core.states import ENDED, State
from jobq.operations import removal


@queue.command(examples="jq-ctl queue clear imports\njq-ctl queue clear imports --delayed --yes")
@name_argument
@click.option("--delayed", is_flag=True, help="Also cancel delayed and blocked jobs.")
@yes_option
@on_store
async def clear(ctl: Ctl, name: str, delayed: bool, yes: bool) -> None:
    """Cancel all waiting jobs of a queue."""
    (seen,) = await summaries(ctl, [name])
    states = removal.PENDING if delayed else (State.WAITING,)
    total = sum(seen.stats.counts.get(state, 0) for state in states)
    confirm(f"Cancel {text.plural(total, 'job')} of {name!r}?", yes=yes or not total)
    done = await _purge(ctl, seen, "clearing", total, states)
    ctl.out.show(
        {"queue": name, "cleared": done}, lambda: f"{text.plural(done, 'job')} of {name} cancelled"
    )


@queue.command(
    examples="""
    jq-ctl queue clean billing --state completed --older-than 1h
    jq-ctl queue clean billing --state failed -n 1000 --yes
    """
)
@name_argument
@click.option(
    "--state",
    type=click.Choice([s.value for s in State if s.ended]),
    required=True,
    help="Only jobs in this state.",
)
@click.option(
    "--older-than",
    type=DURATION,
    metavar="TIME",
    default=0.0,
    help="Only jobs that ended at least this long ago, e.g. 1h.",
)
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Maximum jobs to remove, oldest first. Default: all.",
)
@yes_option
@on_store
async def clean(
    ctl: Ctl, name: str, state: str, older_than: float, limit: int | None, yes: bool
) -> None:
    """Remove the records of ended jobs."""
    (seen,) = await summaries(ctl, [name])
    there = seen.stats.counts.get(State(state), 0)
    expected = there if limit is None else min(limit, there)
    age = f" older than {text.duration(older_than * 1000)}" if older_than else ""
    confirm(
        f"Remove up to {text.plural(expected, f'{state} job')}{age} of {name!r}?",
        yes=yes or not there,
    )
    done = await _purge(
        ctl, seen, "cleaning", expected, (state,), older_than=older_than, max_jobs=expected
    )
    ctl.out.show(
        {"queue": name, "state": state, "removed": done},
        lambda: f"{text.plural(done, f'{state} job')} of {name} removed",
    )


async def _purge(
    ctl: Ctl,
    seen: QueueSummary,
    label: str,
    total: int,
    states: Sequence[State | str],
    **limits: Any,
) -> int:
    with bar(label, total) as advance:
        purge = removal.Purge(
            seen.record.queue, states, actor=ctl.backend.actor, advance=advance, **limits
        )
        return await purge.run(ctl.backend.store, int(time.time() * 1000))


@queue.command(examples="jq-ctl queue delete old-imports --yes")
@name_argument
@yes_option
@on_store
async def delete(ctl: Ctl, name: str, yes: bool) -> None:
    """Delete a queue whose jobs have all ended. Their records are deleted as well."""
    (seen,) = await summaries(ctl, [name])
    if open_ := sum(n for state, n in seen.stats.counts.items() if state not in ENDED):
        fail(
            f"queue {name!r} has {text.plural(open_, 'unfinished job')}: wait until they end, "
            f"or use jq-ctl queue obliterate {name}"
        )
    await _obliterate(ctl, seen, yes=yes, force=False, did="deleted")


@queue.command(
    examples="jq-ctl queue obliterate tests --yes\njq-ctl queue obliterate stuck --force"
)
@name_argument
@click.option("--force", is_flag=True, help="Even while jobs are running. Their results are lost.")
@yes_option
@on_store
async def obliterate(ctl: Ctl, name: str, force: bool, yes: bool) -> None:
    """Remove a queue with everything in it. This includes unfinished jobs."""
    (seen,) = await summaries(ctl, [name])
    await _obliterate(ctl, seen, yes=yes, force=force, did="obliterated")


async def _obliterate(ctl: Ctl, seen: QueueSummary, *, yes: bool, force: bool, did: str) -> None:
    name, total = seen.record.queue, sum(seen.stats.counts.values())
    confirm(f"Remove queue {name.queue!r} with {text.plural(total, 'job')} for good?", yes=yes)
    with bar(f"removing {name.queue}", total) as advance:
        await removal.obliterate(
            ctl.backend.store, name, force=force, actor=ctl.backend.actor, advance=advance
        )
    ctl.out.show(
        {"queue": name.queue, "removed": total},
        lambda: f"{name.queue} {did}, with {text.plural(total, 'job')}",
    )
