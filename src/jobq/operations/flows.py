"""Flows: a job with the jobs it waits for, what those wait for, and so on, as a tree; and running
them again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from jobq.core.records.commands import Revive
from jobq.core.records.jobs import Failure, JobKey, JobRecord, QueueName
from jobq.core.records.states import State
from jobq.core.rules.flows import revivals
from jobq.errors import InvalidJob, JobNotFound
from jobq.stores.base import Store

MAX_JOBS = 1000
"""Jobs that are read for one tree, unless the caller gives another number."""
_PAGE = 500
"""Jobs per read."""
_MEMBERS = 100
"""How many of a flow's first jobs are read to find the jobs at its top, given the flow's id."""


class FlowNode(msgspec.Struct, frozen=True, kw_only=True):
    """One job of the tree, listed below the job that waits for it."""

    depth: int
    queue: str
    id: str
    name: str
    state: State | None  # None: its record is gone
    failure: Failure | None = None
    children: int = 0  # how many jobs it waits for
    hidden: int = 0  # how many of those are not listed, because of max_jobs
    again: bool = False  # already listed above: several jobs wait for it

    def __str__(self) -> str:
        why = (
            f": {self.failure.type}: {self.failure.message}"
            if self.failure and self.state is State.FAILED
            else ""
        )
        state = "gone" if self.state is None else self.state.value
        return (
            f"{self.name or '?'} {self.id} ({self.queue}) {state}{why}{' ↑' if self.again else ''}"
        )


class FlowTree(msgspec.Struct, frozen=True, kw_only=True):
    """The jobs of the tree, top to bottom. `print(tree)` draws it."""

    id: str
    nodes: tuple[FlowNode, ...]

    def __iter__(self) -> Iterator[FlowNode]:
        return iter(self.nodes)

    @property
    def complete(self) -> bool:
        """Whether all jobs are listed."""
        return not any(node.hidden for node in self.nodes)

    @property
    def counts(self) -> Mapping[State, int]:
        """How many of the listed jobs are in each state."""
        return Counter(
            node.state for node in self.nodes if node.state is not None and not node.again
        )

    def __str__(self) -> str:
        return "\n".join(lines(self.nodes))

    __repr__ = __str__


def lines(nodes: Iterable[FlowNode]) -> Iterator[str]:
    """The lines of the drawn tree."""
    entries = _with_rest(nodes)
    follows: list[bool] = []  # by depth, from the last line up: does a sibling follow?
    drawn: list[str] = []
    for depth, text in reversed(entries):
        del follows[depth + 1 :]
        follows.extend([False] * (depth + 1 - len(follows)))
        stem = "".join("│  " if more else "   " for more in follows[1:depth])
        drawn.append(text if depth == 0 else f"{stem}{'├─' if follows[depth] else '└─'} {text}")
        follows[depth] = True
    return reversed(drawn)


def _with_rest(nodes: Iterable[FlowNode]) -> list[tuple[int, str]]:
    """Depth and text of each line. Below a node with hidden children, a line says how many."""
    entries: list[tuple[int, str]] = []
    ancestors: list[FlowNode] = []

    def leave(depth: int) -> None:
        while ancestors and ancestors[-1].depth >= depth:
            if (left := ancestors.pop()).hidden:
                entries.append((left.depth + 1, f"… {left.hidden:,} more"))

    for node in nodes:
        leave(node.depth)
        entries.append((node.depth, str(node)))
        ancestors.append(node)
    leave(0)
    return entries


# ── reading ───────────────────────────────────────────────────────────────────────────────────────


async def read_tree(
    store: Store, queue: QueueName, id: str, *, max_jobs: int = MAX_JOBS
) -> FlowTree:
    """Read the tree below a job, or that of a whole flow by its id. Reads about `max_jobs` jobs.

    Raises JobNotFound if there is no such job or flow."""
    roots = await _roots(store, queue, id, max_jobs)
    known: dict[JobKey, JobRecord | None] = {
        JobKey(record.queue, record.id): record for record in roots
    }
    level = list(roots)
    while level and len(known) < max_jobs:
        wanted = dict.fromkeys(
            child for record in level for child in record.children if child not in known
        )
        found = await _get(store, list(wanted)[: max_jobs - len(known)])
        known.update(found)
        level = [record for record in found.values() if record is not None]
    return FlowTree(
        id=id, nodes=tuple(_listed([JobKey(record.queue, record.id) for record in roots], known))
    )


async def read_members(store: Store, queue: QueueName, id: str) -> dict[JobKey, JobRecord]:
    """All jobs of the tree below a job, or of a whole flow by its id, that have a record.

    Raises JobNotFound if there is no such job or flow."""
    level = await _roots(store, queue, id, MAX_JOBS)
    members: dict[JobKey, JobRecord] = {}
    while level:
        members.update({JobKey(record.queue, record.id): record for record in level})
        below = {child for record in level for child in record.children if child not in members}
        found = await _get(store, list(below))
        level = [record for record in found.values() if record is not None]
    return members


async def _roots(store: Store, queue: QueueName, id: str, max_jobs: int) -> list[JobRecord]:
    """The job of that id, or the jobs at the top of the flow of that id."""
    (job,) = await store.get([JobKey(queue, id)])
    if job is not None:
        return [job]
    found = await _get(store, [JobKey(queue, f"{id}.{n}") for n in range(_MEMBERS)])
    level = [record for record in found.values() if record is not None]
    if not level:
        raise JobNotFound(
            f"there is no job and no flow {id!r} in queue {queue.queue!r}: it was removed, or its "
            "record has expired"
        )
    seen = {JobKey(record.queue, record.id) for record in level}
    roots: dict[JobKey, JobRecord] = {}
    while level:
        roots.update(
            {JobKey(record.queue, record.id): record for record in level if not record.parents}
        )
        parents = [parent for record in level for parent in record.parents if parent not in seen]
        seen.update(parents)
        climbed = await _get(store, list(dict.fromkeys(parents))) if len(seen) < max_jobs else {}
        level = [record for record in climbed.values() if record is not None]
    return list(roots.values())


async def _get(store: Store, jobs: list[JobKey]) -> dict[JobKey, JobRecord | None]:
    found: dict[JobKey, JobRecord | None] = {}
    for start in range(0, len(jobs), _PAGE):
        page = jobs[start : start + _PAGE]
        found.update(zip(page, await store.get(page), strict=True))
    return found


def _listed(roots: list[JobKey], known: Mapping[JobKey, JobRecord | None]) -> Iterator[FlowNode]:
    """The nodes, depth first. Not recursive: a chain may be longer than Python's stack."""
    seen: set[JobKey] = set()
    todo = [(key, 0) for key in reversed(roots)]
    while todo:
        key, depth = todo.pop()
        again, record = key in seen, known[key]
        seen.add(key)
        if record is None:
            yield FlowNode(
                depth=depth, queue=key.queue.queue, id=key.id, name="", state=None, again=again
            )
            continue
        children = [] if again else [child for child in record.children if child in known]
        yield FlowNode(
            depth=depth,
            queue=key.queue.queue,
            id=key.id,
            name=record.name,
            state=record.state,
            failure=record.failure,
            children=len(record.children),
            hidden=0 if again else len(record.children) - len(children),
            again=again,
        )
        todo += [(child, depth + 1) for child in reversed(children)]


# ── running again ─────────────────────────────────────────────────────────────────────────────────


async def rerun_flow(
    store: Store, queue: QueueName, id: str, actor: str | None, *, max_jobs: int | None = None
) -> int:
    """Run the failed and cancelled members of a flow again, and keep the finished ones.

    Returns how many run again. Raises JobNotFound, or InvalidJob if there are more than
    `max_jobs`."""
    members = await read_members(store, queue, id)
    if max_jobs is not None and len(members) > max_jobs:
        raise InvalidJob(f"the flow has {len(members):,} jobs: use jq-ctl flow rerun {id}")
    total = 0
    for group in revivals(members):
        keys = list(group)
        for start in range(0, len(keys), _PAGE):
            commands = [
                Revive(job=key, life=members[key].life, actor=actor)
                for key in keys[start : start + _PAGE]
            ]
            total += (await store.alter(commands)).count("done")
    return total
