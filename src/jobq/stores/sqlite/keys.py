"""Figures of keys: how many of a key's jobs wait and run, and so whether it may start another."""

from __future__ import annotations

from jobq.stores.sqlite.tx import KEYED, Tx, as_json

DEFAULT_LIMIT = 1
"""Of a keyed queue that declares none: strict order per key."""


def flush(tx: Tx) -> None:
    """Write what happened to keys since the last flush, and who is ready now. Runs before a claim and at the end."""
    changed: dict[int, list[tuple[str, list[int]]]] = {}
    for (qid, key), counts in tx.take_keys().items():
        if counts[0] or counts[1]:
            changed.setdefault(qid, []).append((key, counts))
    for qid, counted in changed.items():
        turn = tx.places(qid, len(counted))
        tx.connection.executemany(
            KEYED["add_to_key"],
            [(qid, key, waiting, active, turn + n) for n, (key, (waiting, active)) in enumerate(counted)],
        )
        settle(tx, qid, [key for key, _ in counted])


def settle(tx: Tx, qid: int, names: list[str]) -> None:
    """Work out which of these keys are ready; forget those with nothing left."""
    limit = tx.queue_by_qid(qid).settings.effective.key_limit or DEFAULT_LIMIT
    found = tx.execute(KEYED["settle_keys"], (limit, tx.now, qid, as_json(names))).fetchall()
    idle = [key for key, _, is_idle in found if is_idle]
    if idle:
        tx.execute(KEYED["drop_keys"], (qid, as_json(idle)))
    ready = sum(1 for _, ready, _ in found if ready == 1)
    if ready:
        tx.woken[qid] = max(tx.woken.get(qid, 0), ready)
