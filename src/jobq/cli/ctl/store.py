"""`jq-ctl store …`: work on a store as a whole."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import click
from rich.console import RenderableType

from jobq.cli import text
from jobq.cli.address import WrongAddress
from jobq.cli.backend import Backend
from jobq.cli.options import DURATION, FAILED, Ctl, confirm, guarded, noun, yes_option
from jobq.cli.output import Column, bar, table
from jobq.operations.store_copy import QueueCopy, Report, Side, preview
from jobq.stores.base import database_of

store = noun("store", "Migrate a store, or move its queues to another one.")

_STAYED = {
    "flow": "part of a flow, or blocked: let workers of FROM finish the flow",
    "saved": "has saved steps or a state: let workers of FROM finish the job",
    "unique": "another job of TO holds the unique lock",
    "full": "TO has reached max_waiting",
    "invalid": "TO refuses the job: enqueue it there to see why",
    "id": "TO has another job with the id of the failed one",
    "started": "claimed or changed meanwhile",
}


@store.command(
    examples="""
    jq-ctl store copy sqlite:///jobs.db valkey://localhost:6379 --dry-run
    jq-ctl store copy sqlite:///jobs.db valkey://localhost:6379 -q billing -q email
    jq-ctl store copy sqlite:///jobs.db valkey://localhost:6379 --wait 10m --yes -o json
    """,
)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option(
    "-q",
    "--queue",
    "queues",
    metavar="NAME",
    multiple=True,
    help="Only this queue. Repeat for several. Default: all queues of the tenant.",
)
@click.option(
    "--wait",
    type=DURATION,
    metavar="TIME",
    default=60.0,
    help="How long to wait for running jobs of a queue to end, before any of its jobs moves. "
    "0: do not wait; running jobs end in FROM. Default: 60s.",
)
@click.option("--dry-run", is_flag=True, help="Only print what would move.")
@yes_option
@click.pass_context
def copy(
    ctx: click.Context,
    source: str,
    target: str,
    queues: tuple[str, ...],
    wait: float,
    dry_run: bool,
    yes: bool,
) -> None:
    """Move queues from one store to another.

    Moves waiting, delayed and failed jobs, schedules, and the settings of the queues. Each job
    keeps its id and is removed from FROM when TO has it, so no job runs twice and none is lost. If
    the command stops or is killed, run it again: it continues. FROM does not start jobs of a queue
    while the queue moves. Jobs of flows and jobs with saved steps stay and are reported; the exit
    code is then 1.
    """
    ctl = Ctl(ctx)
    ctx.exit(guarded(lambda: asyncio.run(_copy(ctl, source, target, queues, wait, dry_run, yes))))


@store.command(
    examples="""
    jq-ctl store migrate --url postgresql://owner@db/app --dry-run > migration.sql
    jq-ctl store migrate --url postgresql://owner@db/app
    """,
)
@click.option("--dry-run", is_flag=True, help="Only print the SQL that would run (PostgreSQL).")
@click.pass_context
def migrate(ctx: click.Context, dry_run: bool) -> None:
    """Bring the store's schema up to date with this version of jobq.

    Every program that opens the store does this by itself, unless its URL says migrate=no. A store
    that is up to date is not changed. With --dry-run, nothing is changed either.
    """
    ctl = Ctl(ctx)
    ctx.exit(guarded(lambda: asyncio.run(_migrate(ctl, dry_run))))


async def _migrate(ctl: Ctl, dry_run: bool) -> int:
    found = ctl.backend.unopened()
    tables = database_of(found)
    if tables is None:
        if dry_run:
            raise WrongAddress(
                f"{ctl.backend.shown} has no SQL to print: only PostgreSQL stores have"
            )
        async with found:
            pass
        sql = None
    else:
        sql = await tables.pending_migration()
        if sql and not dry_run:
            await tables.upgrade()
    changed = None if sql is None else bool(sql)
    document = {"url": ctl.backend.shown, "changed": changed and not dry_run, "sql": sql}
    ctl.out.show(document, lambda: None)
    if ctl.out.format == "table":
        if dry_run and sql:
            click.echo(sql, nl=False)
        done = "has been migrated" if changed and not dry_run else "is up to date"
        if not (dry_run and sql):
            ctl.out.note(f"{ctl.backend.shown} {done}")
    return 0


async def _copy(
    ctl: Ctl,
    source: str,
    target: str,
    queues: Sequence[str],
    wait: float,
    dry_run: bool,
    yes: bool,
) -> int:
    _check_addresses(source, target)
    tenant, timeout = ctl.backend.named, ctl.backend.timeout
    async with AsyncExitStack() as stack:
        here = await stack.enter_async_context(
            Backend(source, tenant=tenant, timeout=timeout).opened()
        )
        records = await here.known(queues)
        from_ = _side(here)
        plan = [await preview(from_, record.queue) for record in records]
        if dry_run:
            ctl.out.show(_document(plan), lambda: _table(plan, "would move"))
            return 0
        total = sum(report.moved for report in plan)
        confirm(
            f"Move {text.plural(total, 'job')} of {text.plural(len(plan), 'queue')} "
            f"from {here.shown} to {Backend(target).shown}?",
            yes=yes,
        )
        there = await stack.enter_async_context(
            Backend(target, tenant=tenant, timeout=timeout).opened(create=True)
        )
        done: list[Report] = []
        with bar("moving", total) as advance:
            for record in records:
                move = QueueCopy(from_, _side(there), record.queue, wait_s=wait, progress=advance)
                done.append(await move.run())
    ctl.out.show(_document(done), lambda: _table(done, "moved"))
    _explain(ctl, done)
    return 0 if all(report.complete for report in done) else FAILED


def _check_addresses(source: str, target: str) -> None:
    for url in (source, target):
        if urlsplit(url).scheme == "memory":
            raise WrongAddress("memory:// exists only inside one process, so it cannot be copied")
    if source == target or _file(source) == _file(target) is not None:
        raise WrongAddress("FROM and TO are the same store")


def _file(url: str) -> str | None:
    parts = urlsplit(url)
    return os.path.realpath(parts.path.removeprefix("/")) if parts.scheme == "sqlite" else None


def _side(backend: Backend) -> Side:
    return Side(backend.handle, timeout_s=backend.timeout, actor=backend.actor)


def _document(reports: Sequence[Report]) -> list[dict[str, object]]:
    return [
        {
            "queue": r.queue,
            "waiting": r.waiting,
            "delayed": r.delayed,
            "failed": r.failed,
            "schedules": r.schedules,
            "active": r.active,
            "stayed": r.stayed,
        }
        for r in reports
    ]


def _table(reports: Sequence[Report], did: str) -> RenderableType:
    columns = (
        Column("QUEUE"),
        *(
            Column(name, right=True)
            for name in ("WAITING", "DELAYED", "FAILED", "SCHEDULES", "ACTIVE", "STAY")
        ),
        Column(""),
    )
    return table(
        columns,
        [
            [
                r.queue, r.waiting, r.delayed, r.failed, r.schedules, r.active,
                sum(r.stayed.values()), did,
            ]
            for r in reports
        ],
    )  # fmt: skip


def _explain(ctl: Ctl, reports: Sequence[Report]) -> None:
    for report in reports:
        for reason, n in report.stayed.items():
            ctl.out.note(f"{report.queue}: {text.plural(n, 'job')} stayed: {_STAYED[reason]}")
        if report.active:
            ctl.out.note(
                f"{report.queue}: {text.plural(report.active, 'job')} still running in FROM: run "
                "the command again when they have ended"
            )
