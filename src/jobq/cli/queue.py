"""`jq-ctl queue …`: inspect queues, and operate on a whole queue."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import cast

import click
from msgspec.structs import replace
from rich.console import Group
from rich.live import Live
from rich.text import Text

from jobq.cli import documents, text
from jobq.cli.options import DURATION, Ctl, confirm, fail, noun, on_store, yes_option
from jobq.cli.progress import bar, sweep
from jobq.cli.queue_view import QueueSummary, queue_details, queue_table, summarize, watch_table
from jobq.core.checks import check_queue_name
from jobq.core.queues import QueueConfig, RetentionData
from jobq.core.records import Mode, QueueName
from jobq.core.states import ENDED, State

queue = noun("queue", "Inspect queues; pause, hold, clean or remove a whole queue.")
name_argument = click.argument("name")
names_argument = click.argument("names", metavar="NAME...", nargs=-1, required=True)
key_option = click.option(
    "--key", metavar="KEY", help="Only for this key of a keyed queue. Default: the queue."
)
_STEP = 1000  # jobs per call to the store: short enough that workers are not held up


# ── looking ───────────────────────────────────────────────────────────────────────────────────────


@queue.command(
    "list", examples="jq-ctl queue list\njq-ctl queue list -o json | jq '.[] | {queue, counts}'"
)
@on_store
async def list_(ctl: Ctl) -> None:
    """List the queues with the number of jobs in each state."""
    queues = await _summaries(ctl, ())
    ctl.out.show([g.document for g in queues], lambda: queue_table(queues))
    if not queues:
        ctl.out.note(
            "no queues yet: the first job creates its queue, and so does jq-ctl queue create"
        )


@queue.command(
    examples="jq-ctl queue stats billing\njq-ctl queue stats billing --minutes 240 -o json"
)
@name_argument
@click.option(
    "--minutes",
    type=click.IntRange(1, 1440),
    default=60,
    show_default=True,
    metavar="N",
    help="Number of minutes to show.",
)
@on_store
async def stats(ctl: Ctl, name: str, minutes: int) -> None:
    """Show one queue: counts, limits, retention, and rates of the last minutes."""
    (seen,) = await _summaries(ctl, [name])
    metrics = await ctl.backend.within(
        ctl.backend.store.metrics(seen.record.queue, minutes=minutes)
    )
    document = {**seen.document, "minutes": [documents.minute(m) for m in metrics]}
    ctl.out.show(document, lambda: queue_details(seen, metrics, minutes))


@queue.command(examples="jq-ctl queue watch\njq-ctl queue watch billing emails --every 5s")
@click.argument("names", metavar="[NAME...]", nargs=-1)
@click.option(
    "--every",
    type=DURATION,
    default=1.0,
    show_default=True,
    metavar="TIME",
    help="Interval between updates, e.g. 5s.",
)
@click.option(
    "--times",
    type=click.IntRange(min=1),
    metavar="N",
    help="Stop after N updates. Default: run until interrupted.",
)
@on_store
async def watch(ctl: Ctl, names: tuple[str, ...], every: float, times: int | None) -> None:
    """Show queues as they change, with jobs ended per second. Stop with Ctrl-C."""
    screen = (
        Live(console=ctl.out.console, auto_refresh=False)
        if ctl.out.format == "table" and ctl.out.console.is_terminal
        else None
    )
    before: list[QueueSummary] | None = None
    looks = 0
    with screen or nullcontext():
        while True:
            now = await _summaries(ctl, names)
            if screen is not None:
                screen.update(watch_table(before, now), refresh=True)
            else:
                ctl.out.stream([g.document for g in now], partial(watch_table, before, now))
            before, looks = now, looks + 1
            if looks == times:
                return
            await asyncio.sleep(max(0.1, every))


async def _summaries(ctl: Ctl, names: Sequence[str]) -> list[QueueSummary]:
    records = await ctl.backend.known(names)
    stats = [await ctl.backend.within(ctl.backend.store.stats(record.queue)) for record in records]
    return [summarize(record, s) for record, s in zip(records, stats, strict=True)]


# ── creating and removing ─────────────────────────────────────────────────────────────────────────


@queue.command(
    examples="""
    jq-ctl queue create billing --keep-completed 7d --keep-failed 90d
    jq-ctl queue create imports --mode keyed
    """
)
@name_argument
@click.option(
    "--mode",
    type=click.Choice(["plain", "keyed"]),
    help="keyed: every job has a key, and by default one job per key runs at a time. "
    "Default: the first job decides.",
)
@click.option(
    "--keep-completed",
    type=DURATION,
    metavar="TIME",
    help="How long to keep completed jobs. Default: 1d.",
)
@click.option(
    "--keep-failed",
    type=DURATION,
    metavar="TIME",
    help="How long to keep failed jobs. Default: 30d.",
)
@click.option(
    "--keep-cancelled",
    type=DURATION,
    metavar="TIME",
    help="How long to keep cancelled jobs. Default: 1d.",
)
@click.option(
    "--keep-count",
    type=click.IntRange(min=0),
    metavar="N",
    help="Maximum ended jobs to keep, per state. Default: 100000.",
)
@on_store(create=True)
async def create(
    ctl: Ctl,
    name: str,
    mode: str | None,
    keep_completed: float | None,
    keep_failed: float | None,
    keep_cancelled: float | None,
    keep_count: int | None,
) -> None:
    """Create a queue, or change its retention. Enqueueing a job also creates its queue."""
    kept = {
        "completed_ms": keep_completed,
        "failed_ms": keep_failed,
        "cancelled_ms": keep_cancelled,
    }
    given: dict[str, int] = {
        field: round(seconds * 1000) for field, seconds in kept.items() if seconds is not None
    }
    if keep_count is not None:
        given["count"] = keep_count
    queue = ctl.backend.name(check_queue_name(name))
    config = QueueConfig(
        mode=cast(Mode | None, mode),
        retention=await _retention(ctl, queue, given) if given else None,
    )
    await ctl.backend.within(ctl.backend.store.declare(queue, config))
    (seen,) = await _summaries(ctl, [name])
    ctl.out.show(seen.document, lambda: queue_details(seen, [], 0))


async def _retention(ctl: Ctl, queue: QueueName, given: dict[str, int]) -> RetentionData:
    """The stored retention, or the default, updated with the given values."""
    stored = [record.retention for record in await ctl.backend.queues() if record.queue == queue]
    return replace(stored[0] if stored else RetentionData(), **given)


@queue.command(examples="jq-ctl queue delete old-imports --yes")
@name_argument
@yes_option
@on_store
async def delete(ctl: Ctl, name: str, yes: bool) -> None:
    """Delete a queue whose jobs have all ended, with their records."""
    (seen,) = await _summaries(ctl, [name])
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
    """Remove a queue with everything in it, including unfinished jobs."""
    (seen,) = await _summaries(ctl, [name])
    await _obliterate(ctl, seen, yes=yes, force=force, did="obliterated")


async def _obliterate(ctl: Ctl, seen: QueueSummary, *, yes: bool, force: bool, did: str) -> None:
    name, total = seen.record.queue, sum(seen.stats.counts.values())
    confirm(f"Remove queue {name.queue!r} with {text.plural(total, 'job')} for good?", yes=yes)
    left = total
    with bar(f"removing {name.queue}", total) as advance:
        while not await ctl.backend.within(
            ctl.backend.store.obliterate(name, force=force, limit=_STEP, actor=ctl.backend.actor)
        ):
            now = sum((await ctl.backend.within(ctl.backend.store.count(name))).values())
            advance(max(0, left - now))
            left = now
    ctl.out.show(
        {"queue": name.queue, "removed": total},
        lambda: f"{name.queue} {did}, with {text.plural(total, 'job')}",
    )


# ── operating ─────────────────────────────────────────────────────────────────────────────────────


@queue.command(examples="jq-ctl queue pause billing emails")
@names_argument
@on_store
async def pause(ctl: Ctl, names: tuple[str, ...]) -> None:
    """Stop starting jobs of these queues. Running jobs continue, and new jobs are accepted."""
    await _pause(ctl, names, paused=True)


@queue.command(examples="jq-ctl queue resume billing")
@names_argument
@on_store
async def resume(ctl: Ctl, names: tuple[str, ...]) -> None:
    """Start jobs of these paused queues again."""
    await _pause(ctl, names, paused=False)


async def _pause(ctl: Ctl, names: Sequence[str], *, paused: bool) -> None:
    records = await ctl.backend.known(names)
    change = ctl.backend.store.pause if paused else ctl.backend.store.resume
    for record in records:
        await ctl.backend.within(change(record.queue, actor=ctl.backend.actor))
    ctl.out.show(
        [{"queue": r.queue.queue, "paused": paused} for r in records],
        lambda: Group(
            *(Text(f"{r.queue.queue} {'paused' if paused else 'resumed'}") for r in records)
        ),
    )


@queue.command(examples="jq-ctl queue hold billing 10m\njq-ctl queue hold imports 1h --key acme")
@name_argument
@click.argument("duration", metavar="TIME", type=DURATION)
@key_option
@on_store
async def hold(ctl: Ctl, name: str, duration: float, key: str | None) -> None:
    """Stop starting jobs of a queue, or of one of its keys, for TIME, e.g. 10m.

    Running jobs continue, and new jobs are accepted."""
    await ctl.backend.known([name])
    target = await ctl.backend.queue(name)
    await ctl.backend.within(target.hold(duration, key))
    limits = await ctl.backend.within(target.limits())
    until = limits.held_until if key is None else limits.held_keys.get(key)
    shown = None if until is None else text.iso(round(until.timestamp() * 1000))
    what = name if key is None else f"key {key} of {name}"
    ctl.out.show(
        {"queue": name, "key": key, "held_until": shown},
        lambda: f"{what} held until {shown or 'later'}",
    )


@queue.command(examples="jq-ctl queue release billing\njq-ctl queue release imports --key acme")
@name_argument
@key_option
@on_store
async def release(ctl: Ctl, name: str, key: str | None) -> None:
    """End the hold of a queue, or of one of its keys.

    This also ends a hold that a handler set by raising RateLimited."""
    await ctl.backend.known([name])
    lifted = await ctl.backend.within((await ctl.backend.queue(name)).release_hold(key))
    what = name if key is None else f"key {key} of {name}"
    ctl.out.show(
        {"queue": name, "key": key, "released": lifted},
        lambda: f"{what} {'released' if lifted else 'was not held'}",
    )


@queue.command(examples="jq-ctl queue clear imports\njq-ctl queue clear imports --delayed --yes")
@name_argument
@click.option("--delayed", is_flag=True, help="Also cancel delayed and blocked jobs.")
@yes_option
@on_store
async def clear(ctl: Ctl, name: str, delayed: bool, yes: bool) -> None:
    """Cancel all waiting jobs of a queue."""
    (seen,) = await _summaries(ctl, [name])
    states = (State.WAITING, State.DELAYED, State.BLOCKED) if delayed else (State.WAITING,)
    total = sum(seen.stats.counts.get(state, 0) for state in states)
    confirm(f"Cancel {text.plural(total, 'job')} of {name!r}?", yes=yes or not total)
    done = await sweep(
        "clearing", total, lambda: ctl.backend.within(_clear(ctl, seen.record.queue, delayed))
    )
    ctl.out.show(
        {"queue": name, "cleared": done}, lambda: f"{text.plural(done, 'job')} of {name} cancelled"
    )


async def _clear(ctl: Ctl, name: QueueName, delayed: bool) -> int:
    return await ctl.backend.store.purge_pending(
        name, delayed=delayed, limit=_STEP, actor=ctl.backend.actor
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
    (seen,) = await _summaries(ctl, [name])
    there = seen.stats.counts.get(State(state), 0)
    expected = there if limit is None else min(limit, there)
    age = f" older than {text.duration(older_than * 1000)}" if older_than else ""
    confirm(
        f"Remove up to {text.plural(expected, f'{state} job')}{age} of {name!r}?",
        yes=yes or not there,
    )
    left = expected

    async def step() -> int:
        nonlocal left
        if left <= 0:
            return 0
        n = await ctl.backend.within(
            ctl.backend.store.purge_ended(
                seen.record.queue,
                State(state),
                older_than_ms=round(older_than * 1000),
                limit=min(_STEP, left),
                actor=ctl.backend.actor,
            )
        )
        left -= n
        return n

    done = await sweep("cleaning", expected, step)
    ctl.out.show(
        {"queue": name, "state": state, "removed": done},
        lambda: f"{text.plural(done, f'{state} job')} of {name} removed",
    )
