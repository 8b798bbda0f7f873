"""`jq-ctl flow …`: show jobs that wait for other jobs as a tree, cancel them or run them again."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Group
from rich.text import Text

from jobq.cli import text
from jobq.cli.ctl import documents
from jobq.cli.options import FAILED, Ctl, confirm, noun, on_store, queue_option, yes_option
from jobq.core.records.commands import Cancel
from jobq.core.records.jobs import JobKey
from jobq.core.records.states import State
from jobq.errors import JobNotFound
from jobq.operations.flows import MAX_JOBS, FlowNode, FlowTree, lines

flow = noun("flow", "Show, cancel and rerun jobs that wait for other jobs.")
id_argument = click.argument("id")


@flow.command(
    examples="jq-ctl flow show nightly\njq-ctl flow show 01m7fva5dg03p2g3 -q billing -o json"
)
@id_argument
@queue_option
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=1),
    default=MAX_JOBS,
    show_default=True,
    metavar="N",
    help="Maximum jobs to read, approximately.",
)
@on_store
async def show(ctl: Ctl, id: str, queue: str | None, limit: int) -> None:
    """Show a flow, or a job and all it waits for, as a tree."""
    tree = await _tree(ctl, id, queue, limit)
    counts = {state.value: n for state, n in tree.counts.items()}
    document = {
        "id": tree.id,
        "complete": tree.complete,
        "counts": counts,
        "jobs": [_document(node) for node in tree],
    }
    ctl.out.show(document, lambda: _shown(tree))


@flow.command(examples="jq-ctl flow cancel nightly --yes")
@id_argument
@queue_option
@yes_option
@on_store
async def cancel(ctl: Ctl, id: str, queue: str | None, yes: bool) -> int:
    """Cancel a flow, or a job and everything it waits for."""
    tree = await _tree(ctl, id, queue, MAX_JOBS)
    unfinished = sum(n for state, n in tree.counts.items() if not state.ended)
    if not unfinished and tree.complete:
        ctl.out.show(
            {"id": id, "cancelled": []}, lambda: Text(f"{id}: all its jobs have ended already")
        )
        return FAILED
    more = "" if tree.complete else " at least"
    confirm(f"Cancel{more} {text.plural(unfinished, 'unfinished job')}?", yes=yes)
    roots = [node for node in tree if node.depth == 0]
    keys = [JobKey(ctl.backend.name(node.queue), node.id) for node in roots]
    await ctl.backend.alter(Cancel(job=key, cascade=True) for key in keys)
    tree = await _tree(ctl, id, queue, MAX_JOBS)
    ctl.out.show({"id": id, "cancelled": [node.id for node in roots]}, lambda: _shown(tree))
    return 0


@flow.command(examples="jq-ctl flow rerun nightly\njq-ctl flow rerun top -q billing --yes")
@id_argument
@queue_option
@yes_option
@on_store
async def rerun(ctl: Ctl, id: str, queue: str | None, yes: bool) -> int:
    """Run the failed members of a flow again (alias: retry).

    Members that were cancelled run again, too. Those that failed only because of others wait for
    them again. Completed members keep their results."""
    found, tree = await _found(ctl, id, queue, MAX_JOBS)
    ended = tree.counts.get(State.FAILED, 0) + tree.counts.get(State.CANCELLED, 0)
    if not ended and tree.complete:
        ctl.out.show(
            {"id": id, "rerun": 0}, lambda: Text(f"{id}: none of its jobs failed or was cancelled")
        )
        return FAILED
    more = "" if tree.complete else " at least"
    confirm(f"Run{more} {text.plural(ended, 'failed or cancelled job')} again?", yes=yes)
    done = await ctl.backend.within((await ctl.backend.queue(found)).rerun_flow(id))
    tree = await _tree(ctl, id, found, MAX_JOBS)
    ctl.out.show({"id": id, "rerun": done}, lambda: _shown(tree))
    return 0


async def _tree(ctl: Ctl, id: str, queue: str | None, limit: int) -> FlowTree:
    return (await _found(ctl, id, queue, limit))[1]


async def _found(ctl: Ctl, id: str, queue: str | None, limit: int) -> tuple[str, FlowTree]:
    """Find the tree in `queue`, or in the first queue that has a job or flow of this id."""
    names = (
        [queue]
        if queue is not None
        else [record.queue.queue for record in await ctl.backend.queues()]
    )
    for name in names:
        try:
            tree = (await ctl.backend.queue(name)).flow_tree(id, max_jobs=limit)
            return name, await ctl.backend.within(tree)
        except JobNotFound:
            continue
    where = f"queue {queue!r}" if queue is not None else f"any queue of {ctl.backend.shown}"
    raise JobNotFound(
        f"no job or flow {id} in {where}: the id is wrong, or retention has removed the jobs"
    )


def _document(node: FlowNode) -> dict[str, Any]:
    return {
        "depth": node.depth,
        "queue": node.queue,
        "id": node.id,
        "name": node.name,
        "state": None if node.state is None else node.state.value,
        "failure": documents.failure(node.failure),
        "children": node.children,
        "hidden": node.hidden,
        "again": node.again,
    }


def _shown(tree: FlowTree) -> Group:
    summary = Text(
        ", ".join(f"{n:,} {state.value}" for state, n in tree.counts.items()), style="bright_black"
    )
    return Group(*(Text(_clean(line)) for line in lines(tree)), summary)


def _clean(line: str) -> str:
    """Keep the drawn branches of a line and make the rest safe to print."""
    branches = len(line) - len(line.lstrip("│├└─ "))
    return line[:branches] + text.clean(line[branches:])
