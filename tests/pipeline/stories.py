"""Real histories of a queue, and ways to falsify them between the store and the lake."""

from __future__ import annotations

import copy
import json
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from jobq.core.records.commands import Cancel, Reprioritise, Rerun
from jobq.core.records.jobs import QueueName
from jobq.relay import Relay, open_target
from jobq.stores import open_store
from jobq.stores.base import Store
from jobq_conformance.kit import Desk, FakeClock, complete, fail, retry

TENANT = "acme"
MANY = [f"many-{n}" for n in range(10)]

Line = dict[str, Any]
Lines = list[Line]
Falsify = Callable[[Lines], Lines]


async def live(store: Store, queue: str) -> None:
    """One job for each way through the states, and ten that simply complete.

    The jobs `held`, `changed` and the second life of `reused` stay waiting."""
    q = Desk(store, QueueName(TENANT, queue), FakeClock())
    await store.pause(q.queue)
    await store.resume(q.queue)
    await q.put("plain", "failed", "retried", "again", *MANY)
    leases = {lease.id: lease for lease in await q.claim(100)}
    await q.settle(
        *(complete(leases[id]) for id in ("plain", *MANY)),
        *(fail(leases[id]) for id in ("failed", "again")),
        retry(leases["retried"]),
    )
    await q.settle(complete(await q.take()))  # retried
    await q.alter(Rerun(job=q.key("again")))
    await q.settle(fail(await q.take()))
    await q.alter(Rerun(job=q.key("again")))
    await q.settle(complete(await q.take()))
    await q.put("reused")
    await q.alter(Cancel(job=q.key("reused")))
    await q.put("reused", "changed", "held")
    await q.alter(Reprioritise(job=q.key("changed"), priority=7))


async def ship(
    store: Store, folder: Path, then: Callable[[], Awaitable[object]] | None = None
) -> dict[str, Lines]:
    """Ship the store's events to files, and what happens `then`.

    Returns the lines of each queue, with the marks."""
    target = open_target(f"files://{folder}")
    await target.open()
    relay = Relay(store, target, rejected=folder / "refused")
    await relay.drain()
    if then is not None:
        await then()
        await relay.drain()
    await target.aclose()
    found: dict[str, Lines] = {}
    for path in sorted(folder.glob("*.jsonl")):
        for line in map(json.loads, path.read_text().splitlines()):
            found.setdefault(line["queue"], []).append(line)
    return found


# ── falsifications ────────────────────────────────────────────────────────────────────────────────


def is_mark(line: Line) -> bool:
    return bool(line["kind"] == "mark")


def without(**fields: Any) -> Falsify:
    """Drop all lines with these values. A tuple lists several values."""

    def drop(lines: Lines) -> Lines:
        kept = [line for line in lines if is_mark(line) or not matches(line, fields)]
        assert len(kept) < len(lines), fields
        return kept

    return drop


def matches(line: Line, fields: Line) -> bool:
    return all(
        line.get(name) in value if isinstance(value, tuple) else line.get(name) == value
        for name, value in fields.items()
    )


def rewritten(where: Line, **new: Any) -> Falsify:
    """Change lines. A callable gets the old value."""

    def change(lines: Lines) -> Lines:
        found = copy.deepcopy(lines)
        chosen = [line for line in found if not is_mark(line) and matches(line, where)]
        assert chosen, where
        for line in chosen:
            for name, value in new.items():
                line[name] = value(line.get(name)) if callable(value) else value
        return found

    return change


def numbers(lines: Lines) -> list[int]:
    return [line["number"] for line in lines if not is_mark(line)]


def without_numbers(*gone: int) -> Falsify:
    """Drop events by number; negative numbers count from the end."""

    def drop(lines: Lines) -> Lines:
        last = max(numbers(lines))
        which = {n if n > 0 else last + 1 + n for n in gone}
        return [line for line in lines if is_mark(line) or line["number"] not in which]

    return drop


def without_marks(lines: Lines) -> Lines:
    return [line for line in lines if not is_mark(line)]


def only_marks(lines: Lines) -> Lines:
    return [line for line in lines if is_mark(line)]


def both(*steps: Falsify) -> Falsify:
    def apply(lines: Lines) -> Lines:
        for step in steps:
            lines = step(lines)
        return lines

    return apply


def swapped(one: Line, other: Line) -> Falsify:
    """Swap the numbers of two events."""

    def swap(lines: Lines) -> Lines:
        found = copy.deepcopy(lines)
        a = next(line for line in found if matches(line, one))
        b = next(line for line in found if matches(line, other))
        a["number"], b["number"] = b["number"], a["number"]
        return found

    return swap


def copied(where: Line, **new: Any) -> Falsify:
    """Add a copy of a line with other values."""

    def add(lines: Lines) -> Lines:
        line = copy.deepcopy(next(line for line in lines if matches(line, where)))
        for name, value in new.items():
            line[name] = value(line.get(name)) if callable(value) else value
        return [*lines, line]

    return add


def forged_at_the_end(lines: Lines) -> Lines:
    """A whole job after the last event, with a mark."""
    last, found = max(numbers(lines)), copy.deepcopy(lines)
    for n, line in enumerate(
        copy.deepcopy([line for line in lines if line["job"] == "plain"]), start=1
    ):
        log, position, place, incarnation = line["id"].split("-")
        id = f"{log}-{int(position) + 1000}-{place}-{incarnation}"
        found.append({**line, "job": "forged", "number": last + n, "id": id})
    mark = next(line for line in lines if is_mark(line))
    return [*found, {**mark, "number": last + 3}]


def dropped_unread(first: int, last: int, *, marked: int | None = None) -> Falsify:
    """What a relay ships if the store's log has dropped events: a gap in their place.

    Before it, the relay marks what it has shipped."""

    def drop(lines: Lines) -> Lines:
        gone = next(line for line in lines if line["number"] == last and not is_mark(line))
        job = {"job": "", "name": "", "life": 0, "attempt": 0, "failures": 0, "stalls": 0}
        gap = {name: gone[name] for name in ("v", "id", "number", "shard", "at_ms", "tenant")}
        gap |= {**job, "kind": "gap", "queue": gone["queue"], "created_ms": gone["at_ms"]}
        mark = next(line for line in lines if is_mark(line))
        kept = without_numbers(*range(first, last + 1))(lines)
        return [{**mark, "number": marked or first - 1}, *kept, {**gap, "reason": "dropped"}]

    return drop


def in_shards(lines: Lines) -> Lines:
    """The same jobs in a queue with two shards, of a store that the audit does not see."""
    found, count = [], {0: 0, 1: 0}
    for line in copy.deepcopy(lines):
        if is_mark(line):
            continue
        shard = hash_of(line["job"]) % 2 if line["job"] else 0
        count[shard] += 1
        found.append({**line, "shard": shard, "number": count[shard], "tenant": "elsewhere"})
    mark = next(line for line in lines if is_mark(line))
    return found + [
        {**mark, "shard": shard, "number": n, "tenant": "elsewhere"} for shard, n in count.items()
    ]


def hash_of(text: str) -> int:
    return sum(map(ord, text))


def moved_to(tenant: str) -> Falsify:
    """All lines under another tenant: the audit does not see its store."""
    return lambda lines: [{**line, "tenant": tenant} for line in lines]


def marked_in(partition: int, partitions: int) -> Falsify:
    """The mark in one partition of several."""

    def change(lines: Lines) -> Lines:
        return [
            {**line, "partition": partition, "partitions": partitions} if is_mark(line) else line
            for line in lines
        ]

    return change


def in_store(path: Path, queue: str, sql: str) -> None:
    """Change the store behind its back. `:queue` in the statement is the queue's row."""
    with sqlite3.connect(path) as connection:
        (qid,) = connection.execute("SELECT qid FROM queues WHERE name = ?", (queue,)).fetchone()
        assert connection.execute(sql, {"queue": qid}).rowcount


async def make(url: str, queues: list[str]) -> None:
    """The same history in every queue."""
    async with open_store(url) as store:
        for queue in queues:
            await live(store, queue)
