"""`jq-ctl job logs`: what a job's handler logged."""

from __future__ import annotations

import asyncio
from functools import partial

import click
from rich.text import Text

from jobq.cli import text
from jobq.cli.options import Command, Ctl, on_store, queue_option
from jobq.client.following import new_lines
from jobq.core.records import JobKey


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
