"""Repairs rows with values that jobq never writes, so that one bad row costs one job and stops no
queue.

A repaired job keeps the values that can be read and gets defaults for the others. Unless it has
ended, its options become `UNREADABLE`: the worker that claims the job fails it as unreadable.
Counters are counted again where a bad value made them unreliable.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from jobq.core.records.defaults import DAY_MS
from jobq.core.records.jobs import QueueName
from jobq.stores.relational import keys
from jobq.stores.relational.rows import (
    ACTIVE,
    BLOCKED,
    DELAYED,
    ENDED,
    ERRED,
    FOREVER,
    LOCKING,
    NOTED,
    STEPPED,
    WAITING,
    WANTED,
    WATCHED,
    Row,
)
from jobq.stores.sqlite.damage import BAD, SQL, Damage, bad_columns, is_hidden, queue_values
from jobq.stores.sqlite.statements import INSPECTED_JOB, INSPECTED_QUEUE

if TYPE_CHECKING:
    from jobq.stores.sqlite.tx import SqliteTx

log = logging.getLogger("jobq")

UNREADABLE = b"\xff"
"""Options that cannot be decoded."""
_ANY_FLAG = WATCHED | WANTED | LOCKING | NOTED | ERRED | STEPPED
"""Flags for a job whose own are lost: each makes the store look for rows that belong to the job."""
_KEY = "unreadable"
"""The key of a job whose own is lost."""
_KEYS = 500
"""Keys that are settled with one statement."""


def repair(tx: SqliteTx, damage: Damage, numbers: Mapping[int, QueueName]) -> None:
    """Repair these rows. `numbers` names the queues of jobs whose own column may not."""
    tx.memory.forget_queues()
    recount, rekey = set(), set(damage.keys)
    if damage.queues:
        for row in tx.execute(SQL["inspect_queues"]).fetchall():
            if row[0] in damage.queues:
                _repair_queue(tx, row[0], queue_values(tx, row))
                recount.add(row[0])
    for row in tx.execute(SQL["inspect_jobs"], (tx.listed(sorted(damage.jobs)),)).fetchall():
        found = _repair_job(tx, row, numbers.get(row[0]))
        if found is not None:
            recount.add(found)
            rekey.add(found)
    for qid in recount:
        _recount(tx, qid)
    for qid in rekey:
        _rebuild_keys(tx, qid)


def _repair_job(tx: SqliteTx, row: Row, named: QueueName | None) -> int | None:
    """Repair one job. Returns its queue if the queue's counters may be wrong now."""
    pk, values = row[0], bad_columns(row, INSPECTED_JOB)
    qids = {qid for (qid,) in tx.execute(SQL["qids"])}
    bad = [column for column, value in values.items() if value is BAD]
    qid = values["qid"]
    if not isinstance(qid, int) or qid not in qids:
        if named is None:
            return None  # its queue is unknown: no claim finds the job, so it blocks nothing
        qid = tx.ensure_queue(named).qid
        bad.append("qid")
    keyed = tx.queue_by_qid(qid).mode == "keyed"
    misplaced = (values["key"] is None) is keyed
    if not (bad or misplaced or is_hidden(values)):
        return None
    new = _defaults(tx, pk, qid, keyed=keyed)
    changed = {column: new[column] for column in bad}
    state = WAITING if values["state"] is BAD else values["state"]
    assert isinstance(state, int)
    if misplaced:
        changed["key"] = new["key"]
    if state == WAITING and values["due_ms"] in (None, BAD):
        changed["due_ms"] = tx.now
    if state != WAITING and values["at_ms"] in (None, BAD):
        changed["at_ms"] = {DELAYED: tx.now, ACTIVE: tx.now, BLOCKED: FOREVER}.get(
            state, tx.now + DAY_MS
        )
    if state not in ENDED:
        changed["keep"] = 0
        changed["options"] = UNREADABLE
        tx.execute(SQL["drop_locks_of"], (qid, pk))
    assigned = ", ".join(f"{column} = ?" for column in changed)
    tx.execute(f"UPDATE jobs SET {assigned} WHERE pk = ?", (*changed.values(), pk))
    id = values["id"] if isinstance(values["id"], str) else changed["id"]
    log.error(
        "job %s of queue %s has values that jobq does not write (%s):%s "
        "other jobs are not affected",
        id,
        tx.queue_by_qid(qid).name,
        ", ".join(sorted({*bad, *changed} - {"options", "keep"} or {*bad, "options"})),
        "" if state in ENDED else " it fails as unreadable;",
    )
    return qid


def _defaults(tx: SqliteTx, pk: int, qid: int, *, keyed: bool) -> dict[str, object]:
    """A value for each column of a job."""
    return {
        **dict.fromkeys(INSPECTED_JOB),  # NULL
        "pk": pk,
        "qid": qid,
        "id": f"unreadable-{pk}-{os.urandom(4).hex()}",
        "state": WAITING,
        "priority": 0,
        "seq": tx.take_seqs(qid),
        "keep": 0,
        "key": _KEY if keyed else None,
        "flags": _ANY_FLAG,
        "name": _KEY,
        "life": 0,
        "attempt": 0,
        "failures": 0,
        "stalls": 0,
        "saved_place": 0,
        "created_ms": tx.now,
        "due_ms": tx.now,
        "follows": 0,
        "codec": "json",
        "payload": b"",
    }


def _repair_queue(tx: SqliteTx, qid: int, values: dict[str, object]) -> None:
    """Give a queue's bad columns values that serve. Its counters are counted again."""
    pos, logged = tx.execute(SQL["last_entry"], (qid,)).fetchone() or (0, 0)
    new = {
        **dict.fromkeys(INSPECTED_QUEUE, 0),
        "tenant": "unreadable",
        "name": f"unreadable-{qid}",
        "mode": "keyed" if tx.execute(SQL["any_keyed"], (qid,)).fetchone()[0] else "plain",
        "listed": 1,
        "asleep": 1,
        "heard": 1,
        "seq": tx.execute(SQL["last_seq"], (qid,)).fetchone()[0] or 0,
        "pos": pos,
        "logged": logged,
        "rate": None,
        "settings": UNREADABLE,
    }
    bad = [column for column, value in values.items() if value is BAD]
    assigned = ", ".join(f"{column} = ?" for column in bad)
    tx.execute(f"UPDATE queues SET {assigned} WHERE qid = ?", (*(new[c] for c in bad), qid))
    log.error(
        "queue %s has values that jobq does not write (%s): they were replaced",
        values["name"] if isinstance(values["name"], str) else new["name"],
        ", ".join(bad),
    )


def _recount(tx: SqliteTx, qid: int) -> None:
    """Count the jobs of a queue by state."""
    queue = tx.queue_by_qid(qid)
    counts = [0] * len(queue.counts)
    for state, n in tx.execute(SQL["states"], (qid,)).fetchall():
        if isinstance(state, int) and 0 <= state < len(counts):
            counts[state] = n
    queue.counts, queue.dirty = counts, True


def _rebuild_keys(tx: SqliteTx, qid: int) -> None:
    """Make the rows of a queue's keys from its jobs. Holds and rates that can be read stay."""
    if tx.queue_by_qid(qid).mode != "keyed":
        return
    tx.take_keys()
    held = _held_keys(tx, qid)
    tx.execute(SQL["drop_keys"], (qid,))
    counted = {key: (waits, runs) for key, waits, runs in tx.execute(SQL["key_states"], (qid,))}
    names = list({**counted, **held})
    turn = tx.take_seqs(qid, len(names))
    rows = [(qid, key, *counted.get(key, (0, 0)), turn + n, 0) for n, key in enumerate(names)]
    tx.change_many(tx.sql.keyed["add_key"], rows)
    tx.change_many(
        tx.sql.keyed["set_key_rate"], [(*state, qid, key) for key, state in held.items()]
    )
    for n in range(0, len(names), _KEYS):
        keys.settle(tx, qid, names[n : n + _KEYS])


def _held_keys(tx: SqliteTx, qid: int) -> dict[str, tuple[bytes | None, int, int]]:
    """The keys that have a hold or a rate in use, with what `set_key_rate` writes."""
    held = {}
    for key, *state in tx.execute(SQL["held_keys"], (qid, tx.now)).fetchall():
        with contextlib.suppress(UnicodeDecodeError):
            held[key.decode()] = (state[0], state[1], state[2])
    return held
