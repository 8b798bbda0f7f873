"""`jq-ctl queue …`: inspect queues, operate on a whole queue, empty or remove it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, cast

import click
from msgspec.structs import replace
from rich.console import Group
from rich.live import Live
from rich.text import Text

from jobq.cli import text
from jobq.cli.ctl import documents
from jobq.cli.ctl.queue_view import (
    QueueSummary,
    queue_details,
    queue_table,
    summarize,
    watch_table,
)
from jobq.cli.options import DURATION, Ctl, confirm, fail, noun, on_store, yes_option
from jobq.cli.output import Column, bar, table
from jobq.core.records import refusals
from jobq.core.records.jobs import Mode
from jobq.core.records.queues import JobDefaults, QueueConfig, QueueRecord, differences
from jobq.core.records.states import ENDED, State
from jobq.core.values.checks import MAX_COUNT, check_queue_name, check_ttl
from jobq.errors import ConfigError
from jobq.operations import removal

queue = noun("queue", "Inspect queues; pause, hold, clean or remove a whole queue.")
name_argument = click.argument("name")
names_argument = click.argument("names", metavar="NAME...", nargs=-1, required=True)
key_option = click.option(
    "--key", metavar="KEY", help="Only for this key of a keyed queue. Default: the queue."
)


# ── looking ───────────────────────────────────────────────────────────────────────────────────────


@queue.command(
    "list", examples="jq-ctl queue list\njq-ctl queue list -o json | jq '.[] | {queue, counts}'"
)
@on_store
async def list_(ctl: Ctl) -> None:
    """List the queues with the number of jobs in each state."""
    queues = await summaries(ctl, ())
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
    """Show one queue: counts, limits, retention and rates."""
    (seen,) = await summaries(ctl, [name])
    metrics = await ctl.backend.store.metrics(seen.record.queue, minutes=minutes)
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
    """Show queues as they change. Stop with Ctrl-C."""
    screen = (
        Live(console=ctl.out.console, auto_refresh=False)
        if ctl.out.format == "table" and ctl.out.console.is_terminal
        else None
    )
    before: list[QueueSummary] | None = None
    looks = 0
    with screen or nullcontext():
        while True:
            now = await summaries(ctl, names)
            if screen is not None:
                screen.update(watch_table(before, now), refresh=True)
            else:
                ctl.out.stream([g.document for g in now], partial(watch_table, before, now))
            before, looks = now, looks + 1
            if looks == times:
                return
            await asyncio.sleep(max(0.1, every))


async def summaries(ctl: Ctl, names: Sequence[str]) -> list[QueueSummary]:
    """The records and stats of these queues, or of all."""
    return await summaries_of(ctl, await ctl.backend.known(names))


async def summaries_of(ctl: Ctl, records: Sequence[QueueRecord]) -> list[QueueSummary]:
    """These queues with their stats."""
    stats = [await ctl.backend.store.stats(record.queue) for record in records]
    return [summarize(record, s) for record, s in zip(records, stats, strict=True)]


def _refuse_weights(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        raise click.UsageError(
            "--priority-weights: priority is strict within a queue, so a job of a higher priority "
            "always starts first. Weights are among queues: jq-worker --queues billing=3,emails"
        )


# ── creating ──────────────────────────────────────────────────────────────────────────────────────


@queue.command(
    examples="""
    jq-ctl queue create billing --keep-completed 7d --keep-failed 90d
    jq-ctl queue create imports --mode keyed
    jq-ctl queue create emails --max-retries 5 --ttl 1h
    jq-ctl queue create emails --max-retries 8 --update
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
@click.option(
    "--max-retries",
    type=click.IntRange(0, MAX_COUNT),
    metavar="N",
    help="Maximum retries of jobs for which neither the call nor the task sets a number. "
    "Default: 3.",
)
@click.option(
    "--ttl",
    type=DURATION,
    metavar="TIME",
    help="Fail a job as expired if it has not started within this time after it was due, unless "
    "the call or the task sets a time. 0: jobs do not expire. Default: they do not.",
)
@click.option(
    "--priority-weights",
    metavar="WEIGHTS",
    is_flag=False,
    flag_value="",
    callback=_refuse_weights,
    expose_value=False,
    hidden=True,
)
@click.option(
    "--update",
    is_flag=True,
    help="Change the settings of a queue that exists. Settings that are not given stay.",
)
@on_store(create=True)
async def create(
    ctl: Ctl,
    name: str,
    mode: str | None,
    max_retries: int | None,
    ttl: float | None,
    keep_completed: float | None,
    keep_failed: float | None,
    keep_cancelled: float | None,
    keep_count: int | None,
    update: bool,
) -> None:
    """Create a queue. Enqueueing a job also creates its queue.

    A queue that exists stays as it is: with other settings than the given ones it is an error, and
    with the same it is a success. --update changes the settings that are given. The mode of a queue
    that has one never changes."""
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
    stored = next((each for each in await ctl.backend.queues() if each.queue == queue), None)
    record = stored or QueueRecord(queue=queue)
    config = QueueConfig(
        mode=cast(Mode | None, mode),
        retention=replace(record.retention, **given) if given else None,
        defaults=None
        if max_retries is None and ttl is None
        else _defaults(record.defaults, max_retries, ttl),
    )
    if stored is None or update:
        await ctl.backend.store.declare(queue, config)
    else:
        _must_agree(stored, config)
        ctl.out.note(f"queue {name} exists already; nothing was changed")
    (seen,) = await summaries(ctl, [name])
    document = {**seen.document, "created": stored is None}
    ctl.out.show(document, lambda: queue_details(seen, [], 0))


def _must_agree(stored: QueueRecord, config: QueueConfig) -> None:
    """Raise ConfigError if the queue has other settings, and name the command to change them."""
    if config.mode is not None and stored.mode not in (None, config.mode):
        raise refusals.other_mode(stored.queue, stored.mode, config)
    if differ := differences(stored, config):
        error = refusals.other_settings(stored.queue, differ)
        raise ConfigError(f"{error}. To change them, add --update to jq-ctl queue create")


def _defaults(stored: JobDefaults, max_retries: int | None, ttl: float | None) -> JobDefaults:
    """The stored defaults of jobs, updated with the given values."""
    if max_retries is not None:
        stored = replace(stored, max_retries=max_retries)
    if ttl is not None:
        stored = replace(stored, ttl_ms=check_ttl(ttl) if ttl else None)
    return stored


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
        await change(record.queue, actor=ctl.backend.actor)
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
    """Start no jobs of a queue or key for TIME (10m, 1h).

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
    """End the hold of a queue or key.

    This also ends a hold that a handler set by raising RateLimited."""
    await ctl.backend.known([name])
    lifted = await ctl.backend.within((await ctl.backend.queue(name)).release_hold(key))
    what = name if key is None else f"key {key} of {name}"
    ctl.out.show(
        {"queue": name, "key": key, "released": lifted},
        lambda: f"{what} {'released' if lifted else 'was not held'}",
    )


# `jq-ctl queue clear`, `clean`, `delete` and `obliterate`: remove jobs, or a whole queue.


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


# `jq-ctl queue readers` and `queue forget-reader`: the registered readers of event logs.


@queue.command(examples="jq-ctl queue readers\njq-ctl queue readers billing -o json")
@click.argument("names", metavar="[NAME...]", nargs=-1)
@on_store
async def readers(ctl: Ctl, names: tuple[str, ...]) -> None:
    """List the readers of event logs and their positions. Default: of all queues.

    A relay or pipeline registers itself. The store keeps events until every reader has
    acknowledged them."""
    rows = [
        {"queue": record.queue.queue, "reader": reader, "position": position}
        for record in await ctl.backend.known(names)
        for reader, position in (await ctl.backend.store.readers(record.queue)).items()
    ]
    columns = [Column("QUEUE"), Column("READER"), Column("POSITION")]
    ctl.out.show(
        rows, lambda: table(columns, [list(map(text.clean, row.values())) for row in rows])
    )
    if not rows:
        ctl.out.note("no readers: each log keeps only its latest events")


@queue.command(
    "forget-reader",
    examples="jq-ctl queue forget-reader trial\njq-ctl queue forget-reader relay billing --yes",
)
@click.argument("reader")
@click.argument("names", metavar="[NAME...]", nargs=-1)
@yes_option
@on_store
async def forget_reader(ctl: Ctl, reader: str, names: tuple[str, ...], yes: bool) -> None:
    """Stop keeping events for READER in these queues. Default: all queues.

    If the reader returns, it may find a gap in the log."""
    store, known = ctl.backend.store, await ctl.backend.known(names)
    held = [r.queue for r in known if reader in await store.readers(r.queue)]
    if not held:
        fail(f"no reader {reader!r} in these queues: jq-ctl queue readers lists all readers")
    confirm(f"Stop keeping events for {reader!r} in {text.plural(len(held), 'queue')}?", yes=yes)
    for name in held:
        await store.remove_reader(name, reader)
    done = f"reader {reader} removed from {text.plural(len(held), 'queue')}"
    ctl.out.show({"reader": reader, "queues": [name.queue for name in held]}, lambda: done)
