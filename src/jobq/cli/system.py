"""`jq-ctl status` and `jq-ctl version`: the store as a whole, and the installation."""

from __future__ import annotations

import platform
import time

import click
from rich.console import Group, RenderableType
from rich.text import Text

from jobq.cli import text
from jobq.cli.options import Command, Ctl, on_store
from jobq.cli.output import Output, details
from jobq.cli.queue_view import queue_table, summarize
from jobq.core.states import State
from jobq.core.version import __version__


@click.command(
    cls=Command, examples="jq-ctl status\njq-ctl --url valkey://localhost:6379 status -o json"
)
@on_store
async def status(ctl: Ctl) -> None:
    """Show the store's queues and workers, and what needs attention."""
    began = time.monotonic()
    records = await ctl.backend.queues()
    answered_ms = (time.monotonic() - began) * 1000
    queues = [
        summarize(r, await ctl.backend.within(ctl.backend.store.stats(r.queue))) for r in records
    ]
    workers = [
        w
        for w in await ctl.backend.within(ctl.backend.store.workers())
        if any(q.tenant == ctl.backend.tenant for q in w.queues)
    ]
    totals = {s: sum(q.stats.counts.get(s, 0) for q in queues) for s in State}
    notices = [
        *(f"{q.record.queue.queue} is paused" for q in queues if q.stats.paused),
        *(
            f"{q.record.queue.queue} has {text.plural(n, 'job')} waiting and no worker"
            for q in queues
            if (n := q.stats.counts.get(State.WAITING, 0)) and not q.stats.workers
        ),
        *(
            f"{q.record.queue.queue} has {text.plural(n, 'failed job')}"
            for q in queues
            if (n := q.stats.counts.get(State.FAILED, 0))
        ),
    ]
    document = {
        "url": ctl.backend.store.url,
        "tenant": ctl.backend.tenant,
        "answered_ms": round(answered_ms, 3),
        "counts": {s.value: n for s, n in totals.items()},
        "workers": len(workers),
        "slots": sum(w.concurrency for w in workers),
        "notices": notices,
        "queues": [q.document for q in queues],
    }

    def render() -> RenderableType:
        busy = sum(w.active for w in workers)
        slots = sum(w.concurrency for w in workers)
        parts: list[RenderableType] = [
            details(
                [
                    ("Store", f"{ctl.backend.store.url}  (replied in {answered_ms:.1f} ms)"),
                    (
                        "Workers",
                        f"{len(workers)}, {busy:,} of {slots:,} slots busy" if workers else "none",
                    ),
                    (
                        "Jobs",
                        Text(", ").join(_counted(s, n) for s, n in totals.items() if n) or "none",
                    ),
                ]
            )
        ]
        if queues:
            parts += [Text(), queue_table(queues)]
        parts += [Text("! ", style="yellow") + Text(notice) for notice in notices]
        return Group(*parts)

    ctl.out.show(document, render)


def _counted(state: State, n: int) -> Text:
    return Text(f"{n:,} {state.value}", style=text.STATE_STYLES[state])


@click.command(cls=Command)
@click.pass_context
def version(ctx: click.Context) -> None:
    """Print the versions of jobq, Python and the platform."""
    facts = {
        "jobq": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
    }
    out = Output(ctx.meta.get("jobq.output") or "table")
    out.show(facts, lambda: details(facts.items()))
