-- Keyed queues: which keys may start a job, and the counts that decide it.
-- keys.py reads the counts of keys, changes them and writes them back. A single statement that does
-- so for a list of keys and returns the result costs half as much again per key.

-- name: queue_by_qid: a queue by number
SELECT {queue} FROM queues WHERE qid = ?;

-- name: figures: the counts of the keys of a list
SELECT k.rowid, k.key, k.waiting, k.active, k.ready, k.held_ms, k.rate_until_ms
FROM json_each(?2) CROSS JOIN keys k ON k.qid = ?1 AND k.key = value;

-- name: add_key: insert a key
INSERT INTO keys (qid, key, waiting, active, turn, ready) VALUES (?, ?, ?, ?, ?, ?);

-- name: count_key: write the counts of a key that is as ready as before; changes no index
UPDATE keys SET waiting = ?, active = ? WHERE rowid = ?;

-- name: set_key: write the counts, and ready: 1 may start, 2 may start after its hold, 0 may not
UPDATE keys SET waiting = ?, active = ?, ready = ? WHERE rowid = ?;

-- name: rotate: write the counts of a key that has started a job, and its new turn
UPDATE keys SET waiting = ?, active = ?, ready = ?, turn = ? WHERE rowid = ?;

-- name: drop_key: delete a key without jobs, hold or rate
DELETE FROM keys WHERE rowid = ?;

-- name: next_keys: the next job of each ready key in the order of their turns (rows.KeyHead)
SELECT {claiming_j}, k.rowid, k.waiting, k.active, k.rate
FROM keys k CROSS JOIN jobs j ON j.pk = (
    SELECT l.pk FROM jobs l
    WHERE l.qid = k.qid AND l.key = k.key AND l.state = 2 AND l.key IS NOT NULL
        AND (l.at_ms IS NULL OR l.at_ms > ?2)
    ORDER BY l.priority DESC, l.seq LIMIT 1
)
WHERE k.qid = ?1 AND k.ready = 1 ORDER BY k.turn LIMIT ?3;

-- name: set_key_rate: write the state of a key's rate
UPDATE keys SET rate = ?, rate_until_ms = ?, held_ms = ? WHERE qid = ? AND key = ?;

-- name: hold_key: hold a key; the later end stays
INSERT INTO keys (qid, key, waiting, active, turn, ready, held_ms) VALUES (?, ?, 0, 0, 0, 0, ?)
ON CONFLICT (qid, key) DO UPDATE SET held_ms = max(held_ms, excluded.held_ms);

-- name: hold_key_until: change the end of a key's hold
UPDATE keys SET held_ms = ? WHERE qid = ? AND key = ?;

-- name: lift_key: end the hold of a key
UPDATE keys SET held_ms = 0 WHERE qid = ? AND key = ?;

-- name: lift_keys: end the holds of all keys of a queue
UPDATE keys SET held_ms = 0 WHERE qid = ? AND held_ms > 0;

-- name: free_held_keys: make keys ready whose hold is over
UPDATE keys SET ready = 1 WHERE qid = ?1 AND ready = 2 AND held_ms <= ?2;

-- name: next_held: when the next hold of a key ends
SELECT held_ms FROM keys WHERE qid = ? AND ready = 2 ORDER BY held_ms LIMIT 1;

-- name: key_overrides: the limits of single keys of a queue
SELECT key, limits FROM key_limits WHERE qid = ?;

-- name: any_override: whether a single key of a queue has limits
SELECT 1 FROM key_limits WHERE qid = ? LIMIT 1;

-- name: overrides_of: the limits of those keys of a list that have any
SELECT key, limits FROM key_limits WHERE qid = ? AND key IN (SELECT value FROM json_each(?));

-- name: set_key_override: set the limits of a key
INSERT INTO key_limits (qid, key, n, limits) VALUES (?, ?, ?, ?)
ON CONFLICT (qid, key) DO UPDATE SET n = excluded.n, limits = excluded.limits;

-- name: drop_key_override: delete the limits of a key
DELETE FROM key_limits WHERE qid = ? AND key = ?;

-- name: some_keys: the next keys of a queue in order
SELECT key FROM keys WHERE qid = ? AND key > ? ORDER BY key LIMIT ?;

-- name: keys_after: the next keys of a queue in order, and whether they have neither jobs nor a rate
-- or a hold that still counts
SELECT key, waiting = 0 AND active = 0 AND held_ms <= ?3 AND rate_until_ms <= ?3
FROM keys WHERE qid = ?1 AND key > ?2 ORDER BY key LIMIT ?4;

-- name: delete_keys: keys that have neither
DELETE FROM keys WHERE qid = ?1 AND key IN (SELECT value FROM json_each(?2));
