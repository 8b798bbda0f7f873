"""`jq-ctl worker …`: list workers, and ask them to drain, resume, shut down or run more jobs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import click
from rich.console import Group, RenderableType
from rich.text import Text

from jobq.cli import text
from jobq.cli.ctl import documents
from jobq.cli.options import DURATION, FAILED, Ctl, fail, noun, on_store
from jobq.cli.output import Column, table
from jobq.core.records.workers import (
    MAX_CONCURRENCY,
    WorkerRecord,
    WorkerRequest,
    asked_concurrency,
    concurrency_request,
)
from jobq.operations import workers

worker = noun("worker", "List workers, and ask them to drain, resume or run more jobs.")
names_argument = click.argument("names", metavar="NAME...", nargs=-1, required=True)
_DONE: dict[str, str] = {
    "drain": "is drained",
    "resume": "claims jobs again",
    "shutdown": "has stopped",
    "shutdown-now": "has stopped",
}


def _wait_option(until: str) -> Callable[[click.decorators.FC], click.decorators.FC]:
    return click.option(
        "--wait",
        type=DURATION,
        metavar="TIME",
        help=f"Wait up to this long until {until}, e.g. 5m.",
    )


@worker.command("list", examples="jq-ctl worker list\njq-ctl worker list -q billing -o json")
@click.option("-q", "--queue", metavar="NAME", help="Only workers of this queue.")
@on_store
async def list_(ctl: Ctl, queue: str | None) -> None:
    """List live workers."""
    records = await _workers(ctl, queue)
    ctl.out.show([documents.worker(r) for r in records], lambda: _table(ctl, records))
    if not records:
        ctl.out.note("no workers: start one with jq-worker module:queue")


@worker.command(
    examples="""
    jq-ctl worker drain web-3-4711-96f22d
    jq-ctl worker drain web-3-4711-96f22d --wait 5m
    """
)
@names_argument
@_wait_option("no job runs on them")
@on_store
async def drain(ctl: Ctl, names: tuple[str, ...], wait: float | None) -> int:
    """Ask workers to finish their running jobs and claim no more.

    The processes keep running until `resume` or `shutdown`."""
    return await _ask(ctl, names, "drain", wait)


@worker.command(examples="jq-ctl worker resume web-3-4711-96f22d")
@names_argument
@_wait_option("they claim jobs again")
@on_store
async def resume(ctl: Ctl, names: tuple[str, ...], wait: float | None) -> int:
    """Ask drained workers to claim jobs again."""
    return await _ask(ctl, names, "resume", wait)


@worker.command(
    examples="""
    jq-ctl worker shutdown web-3-4711-96f22d --wait 1m
    jq-ctl worker shutdown web-3-4711-96f22d --now
    """
)
@names_argument
@click.option(
    "--now",
    is_flag=True,
    help="Release running jobs at once instead of waiting for them. This uses up no retry.",
)
@_wait_option("they have stopped")
@on_store
async def shutdown(ctl: Ctl, names: tuple[str, ...], now: bool, wait: float | None) -> int:
    """Ask workers to stop, as SIGTERM does.

    They stop claiming jobs, wait up to --drain for running ones, and release the rest."""
    return await _ask(ctl, names, "shutdown-now" if now else "shutdown", wait)


@worker.command(
    examples="""
    jq-ctl worker concurrency 20 web-3-4711-96f22d
    jq-ctl worker concurrency 5 web-1 web-2 --wait 30s
    """
)
@click.argument("number", metavar="N", type=click.IntRange(1, MAX_CONCURRENCY))
@names_argument
@_wait_option("their heartbeats show the new number")
@on_store
async def concurrency(ctl: Ctl, number: int, names: tuple[str, ...], wait: float | None) -> int:
    """Ask workers to run up to N jobs at once.

    Running jobs continue. A worker that is restarted has its own --concurrency again. A request
    replaces an earlier one that the worker has not received: give that one --wait first."""
    return await _ask(ctl, names, concurrency_request(number), wait)


def _words(request: WorkerRequest, done: bool) -> str:
    if not done:
        return f"was asked to {workers.words(request)}"
    return _DONE[request] if request in _DONE else workers.words(request).replace("run", "runs", 1)


async def _ask(ctl: Ctl, names: Sequence[str], request: WorkerRequest, wait: float | None) -> int:
    """Store a request for each worker. A worker reads it with its next heartbeat."""
    alive = {r.name for r in await _workers(ctl, None)}
    if missing := [name for name in names if name not in alive]:
        fail(f"no worker {', '.join(missing)}: jq-ctl worker list shows those that are alive")
    asked = {name: await ctl.backend.store.ask_worker(name, request) for name in names}
    done = await _until_done(ctl, names, request, wait) if wait is not None else set()

    def line(name: str) -> Text:
        result = _words(request, name in done)
        return Text(f"{name} {result if asked[name] else 'had stopped already'}")

    ctl.out.show(
        [
            {"name": name, "asked": asked[name], "wish": request, "done": name in done}
            for name in names
        ],
        lambda: Group(*(line(name) for name in names)),
    )
    if wait is not None and (late := [name for name in names if name not in done]):
        ctl.out.note(f"not yet: {', '.join(late)}")
        return FAILED
    return 0 if all(asked.values()) else FAILED


async def _until_done(
    ctl: Ctl, names: Sequence[str], request: WorkerRequest, wait: float
) -> set[str]:
    """Wait for the workers. Returns those whose heartbeats show that the request is carried out."""
    end = time.monotonic() + wait
    while True:
        alive = {r.name: r for r in await _workers(ctl, None)}
        done = {name for name in names if _has_done(alive.get(name), request)}
        if len(done) == len(set(names)) or time.monotonic() >= end:
            return done
        # Poll: heartbeats send no signal. A worker sends one 0.2 s after it has received a request.
        await asyncio.sleep(min(0.2, max(0.0, end - time.monotonic())))


def _has_done(record: WorkerRecord | None, request: WorkerRequest) -> bool:
    if (number := asked_concurrency(request)) is not None:
        return record is not None and record.concurrency == number
    if request == "drain":
        return record is None or (record.draining and not record.active)
    if request == "resume":
        return record is not None and not record.draining
    return record is None


async def _workers(ctl: Ctl, queue: str | None) -> list[WorkerRecord]:
    where = None if queue is None else ctl.backend.name(queue)
    return await workers.of_tenant(ctl.backend.store, ctl.backend.tenant, where)


def _status(record: WorkerRecord) -> Text:
    if record.draining:
        return Text("draining", style="yellow")
    return Text("paused", style="yellow") if record.paused else Text("running", style="green")


def _table(ctl: Ctl, records: Sequence[WorkerRecord]) -> RenderableType:
    now = int(time.time() * 1000)
    columns = (
        Column("NAME"),
        Column("STATUS"),
        Column("ACTIVE", right=True),
        Column("QUEUES", shrinks=True),
        Column("HOST", spare=2),
        Column("PID", right=True, spare=3),
        Column("UP", right=True, spare=1),
        Column("SEEN"),
    )
    return table(
        columns,
        [
            [
                r.name,
                _status(r),
                f"{r.active}/{r.concurrency}",
                ", ".join(q.queue for q in r.queues if q.tenant == ctl.backend.tenant),
                r.host,
                str(r.pid),
                text.duration(now - r.started_ms),
                text.relative(min(r.seen_ms, now), now),
            ]
            for r in records
        ],
    )
