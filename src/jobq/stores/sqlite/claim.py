"""Claiming: the head of the line becomes active. One statement per queue on the plain path, whatever the backlog."""

from __future__ import annotations

from typing import Any

from jobq.core.event_log import KIND_CODES, Item, with_meta
from jobq.core.records import Claim, Lease, QueueName
from jobq.core.states import Kind
from jobq.stores.sqlite import chances, flows, keys, rates, upkeep
from jobq.stores.sqlite.queries import load
from jobq.stores.sqlite.rows import (
    ACTIVE,
    BROKEN,
    CANCEL,
    ENDING,
    NOTED,
    WAITING,
    told_meta,
    unpack_options,
)
from jobq.stores.sqlite.tx import HOT, KEYED, Granted, QueueRow, Tx, as_json

TIES = load("ties.sql")
_STARTED = KIND_CODES[Kind.STARTED]
FEW = 10
"""Up to here a job is claimed by two statements of its own. The one for all makes temporary tables first, which costs as
much as a dozen jobs (40 µs for one job against 12)."""
REMEMBERED = 100_000
"""Leases a process remembers. Those it forgets are read again when their jobs end."""
UPKEEP = 500
"""How many due jobs and expired leases one claim looks after, per queue."""

Row = tuple[Any, ...]


def claim(tx: Tx, wanted: Claim, worker: str, call: str) -> tuple[list[Lease], list[QueueRow]]:
    """Take up to `wanted.limit` jobs, or one that is on its last chance; the leases, and the queues looked at."""
    leases: list[Lease] = []
    seen: list[QueueRow] = []
    alone = False  # a last chance was claimed
    for name in wanted.queues:
        queue = tx.queue_made(name)
        if queue.settings_blob is not None and not tx.readable(
            queue, needed=len(wanted.queues) == 1
        ):
            continue
        seen.append(queue)
        upkeep.queue_due(tx, queue, UPKEEP)
        room = wanted.limit - len(leases)
        if room > 0 and not queue.paused and not alone:
            found = _claim_from(
                tx, queue, room, wanted.lease_ms, worker, call, alone=wanted.alone and not leases
            )
            if queue.qid in tx.last_chances:
                tx.woken[queue.qid] = max(
                    1, queue.counts[WAITING]
                )  # a worker that is alone may take it
            leases += found
            if found and found[0].last_chance:
                alone = True
                tx.woken[queue.qid] = max(
                    1, queue.counts[WAITING]
                )  # it claims nothing more for now: others should
            elif found and len(leases) == wanted.limit and queue.counts[WAITING]:
                tx.woken.setdefault(queue.qid, 1)  # there is more than this worker could take
    return leases, seen


def again(tx: Tx, wanted: Claim, worker: str, call: str) -> list[Lease]:
    """The leases this very call was granted before."""
    mark = token_mark(worker, call)
    leases = []
    for name in wanted.queues:
        queue = tx.queue(name)
        rows = (
            []
            if queue is None
            else tx.execute(HOT["claimed_by_call"], (queue.qid, mark)).fetchall()
        )
        leases += [_lease(tx, name, row[:18], row[19], row[20], row[21]) for row in rows]
    return leases


def next_due(tx: Tx, queues: list[QueueRow]) -> int | None:
    """From now until something in these queues may become claimable by itself."""
    times = []
    for queue in queues:
        for statement in ("next_due", "next_expiry", "next_wait"):
            row = tx.execute(HOT[statement], (queue.qid,)).fetchone()
            if row is not None:
                times.append(row[0])
        if not queue.paused:
            times += rates.next_times(tx, queue)
    return None if not times else max(0, min(times) - tx.now)


def token_mark(worker: str, call: str) -> str:
    """What follows the job's number in the tokens of one call."""
    return f".{worker}/{call}"


def job_number(token: str) -> int:
    """The job's number in a token; -1 for something that is no token of this store."""
    head = token.partition(".")[0]
    return int(head) if head.isdigit() else -1


def _claim_from(
    tx: Tx, queue: QueueRow, room: int, lease_ms: int, worker: str, call: str, *, alone: bool
) -> list[Lease]:
    room = rates.room(tx, queue, room)
    frail = queue.settings_blob is not None and queue.settings.frail > 0
    if frail and room > 0 and queue.mode != "keyed":
        room = chances.room(tx, queue, room, alone=alone)
    if room <= 0:
        return []
    now, mark = tx.now, token_mark(worker, call)
    expires = now + lease_ms
    if queue.mode == "keyed":
        rows = _claim_keyed(tx, queue, room, (mark, worker, now, expires), frail=frail, alone=alone)
    elif rates.by_cost(queue):
        pks = rates.affordable(tx, queue, room)
        rows = (
            tx.execute(HOT["claim_these"], (mark, worker, now, expires, as_json(pks))).fetchall()
            if pks
            else []
        )
    elif room <= FEW:
        rows = tx.execute(HOT["head_of_line"], (queue.qid, now, room)).fetchall()
        for row in rows:
            tx.execute(HOT["claim_one"], (f"{row[0]}{mark}", worker, now, expires, row[0]))
    else:
        rows = tx.execute(
            HOT["claim_plain"], (mark, worker, now, expires, queue.qid, room)
        ).fetchall()
    if len(rows) < room:
        _recount(tx, queue, len(rows))
    if not rows:
        return []
    rates.started(tx, queue, len(rows))
    if queue.mode != "keyed":
        rows.sort(key=_line_order)
    _record(tx, queue, rows, worker, mark)
    if len(tx.memory.granted) > REMEMBERED:
        tx.memory.granted.clear()
    name = queue.qname
    return [_lease(tx, name, row, f"{row[0]}{mark}", now, expires) for row in rows]


def _claim_keyed(
    tx: Tx,
    queue: QueueRow,
    room: int,
    claim: tuple[str, str, int, int],
    *,
    frail: bool,
    alone: bool,
) -> list[Row]:
    """Round robin: in each round every ready key starts one job, until there is no room or nothing is ready.

    A last chance is taken alone, so the round before it is the last one."""
    keys.flush(tx)
    mark, *rest = claim
    rows: list[Row] = []
    while len(rows) < room:
        wanted = room - len(rows)
        heads = tx.execute(KEYED["next_keys"], (queue.qid, tx.now, wanted)).fetchall()
        going = chances.together(queue, heads, alone=alone and not rows) if frail else heads
        if heads and not going and not rows:  # a last chance is next, and the caller is not alone
            if rates.key_pays_for(tx, queue, heads[0]):
                tx.last_chances.add(queue.qid)
            elif queue.held_ms <= tx.now:
                continue  # its key must wait: look at the other keys
            break
        overrides = keys.overrides(tx, queue.qid, [head[4] for head in going])
        chosen = rates.keys_affordable(tx, queue, going, overrides)
        tx.connection.executemany(
            HOT["claim_one"], [(f"{head[0]}{mark}", *rest, head[0]) for head in chosen]
        )
        still_ready = keys.started(tx, queue, chosen, overrides)
        rows += [head[:18] for head in chosen]
        if queue.held_ms > tx.now or (
            len(heads) < wanted and not still_ready and len(going) == len(heads)
        ):
            break
        if frail and (
            not going or (rows and (len(going) < len(heads) or _last_chance(queue, rows[-1])))
        ):
            break  # a last chance is next, or was taken
    return rows


def _last_chance(queue: QueueRow, row: Row) -> bool:
    return chances.is_last(queue, row[9], row[5], row[15])


def _recount(tx: Tx, queue: QueueRow, claimed: int) -> None:
    """Fewer jobs were found than asked for. If none waits any more, correct the counter: rows may have been deleted by others."""
    if (
        queue.counts[WAITING] != claimed
        and tx.execute(HOT["any_waiting"], (queue.qid,)).fetchone() is None
    ):
        queue.counts[WAITING], queue.dirty = claimed, True


def _line_order(row: Row) -> tuple[int, int]:
    return -row[2], row[3]


def _record(tx: Tx, queue: QueueRow, rows: list[Row], worker: str, mark: str) -> None:
    now, qid, granted = tx.now, queue.qid, tx.memory.granted
    wait = frail = 0
    items: list[Item] = []
    names = queue.settings.event_meta
    told = None
    for (
        pk,
        id,
        _,
        _,
        key,
        name,
        life,
        attempt,
        failures,
        stalls,
        created,
        due,
        flags,
        _,
        _,
        packed,
        _,
        _,
    ) in rows:
        wait += now - due
        if stalls:
            frail += 1
        if names:
            told = told_meta(packed, names)
        if not flags & ENDING:
            granted[f"{pk}{mark}"] = Granted(
                qid, pk, id, life, name, key, attempt, failures, stalls, created, due, now, told
            )
        items.append(
            (
                _STARTED,
                id,
                life,
                name,
                key,
                attempt,
                failures,
                stalls,
                ACTIVE,
                WAITING,
                None,
                None,
                None,
                created,
                due,
                now,
                None,
            )
        )
        if told is not None:
            items[-1] = with_meta(items[-1], told)
    tx.moved(qid, _STARTED, WAITING, ACTIVE, items, worker=worker, wait_ms=wait)
    if frail:
        tx.frail(qid, -frail)


def _lease(tx: Tx, queue: QueueName, row: Row, token: str, started: int, expires: int) -> Lease:
    (
        pk,
        id,
        _,
        _,
        key,
        name,
        life,
        attempt,
        failures,
        stalls,
        created,
        _,
        flags,
        _,
        codec,
        packed,
        saved,
        payload,
    ) = row
    if packed is None and not stalls and not flags & (CANCEL | NOTED):
        return Lease(
            queue=queue,
            id=id,
            token=token,
            life=life,
            name=name,
            payload=payload,
            codec=codec,
            attempt=attempt,
            failures=failures,
            stalls=stalls,
            created_ms=created,
            started_ms=started,
            expires_ms=expires,
            key=key,
            saved=saved,
        )
    options = unpack_options(packed)
    noted = bool(flags & NOTED)
    return Lease(
        queue=queue,
        id=id,
        token=token,
        life=life,
        name=name,
        payload=payload,
        codec=codec,
        attempt=attempt,
        failures=failures,
        stalls=stalls,
        created_ms=created,
        started_ms=started,
        expires_ms=expires,
        key=key,
        saved=saved,
        retry=options.retry,
        timeout_ms=options.timeout_ms,
        meta=options.meta,
        cancel_asked=bool(flags & CANCEL),
        unknown_ms=None if options.put_off is None else options.put_off.since_ms,
        last_chance=stalls > 0 and chances.is_last(tx.queue_made(queue), stalls, name, packed),
        inputs=flows.inputs(tx, pk) if noted else (),
        signals=tuple(tx.execute(TIES["signals_of"], (pk,)).fetchall()) if noted else (),
        unreadable=options is BROKEN,
    )
