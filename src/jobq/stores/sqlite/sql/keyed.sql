-- Keyed queues: who may start next, and the figures that decide it.
-- A key's figures are read, worked out in Python (keys.py) and written: a statement that does all of it for a list of keys
-- and returns what became of them costs half as much again per key.

-- name: queue_by_qid: one queue by number
SELECT {queue} FROM queues WHERE qid = ?;

-- name: figures: of the keys of a list
SELECT k.rowid, k.key, k.waiting, k.active, k.ready, k.held_ms, k.rate_until_ms FROM json_each(?2) CROSS JOIN keys k ON k.qid = ?1 AND k.key = value;

-- name: add_key: one that was not there
INSERT INTO keys (qid, key, waiting, active, turn, ready) VALUES (?, ?, ?, ?, ?, ?);

-- name: count_key: its figures, when it is as ready as before; no index is touched
UPDATE keys SET waiting = ?, active = ? WHERE rowid = ?;

-- name: set_key: its figures, and ready: 1 may start, 2 may start once it is no longer held, 0 neither
UPDATE keys SET waiting = ?, active = ?, ready = ? WHERE rowid = ?;

-- name: rotate: the same for a key that had its turn
UPDATE keys SET waiting = ?, active = ?, ready = ?, turn = ? WHERE rowid = ?;

-- name: drop_key: nothing waiting, nothing active, nothing to remember
DELETE FROM keys WHERE rowid = ?;

-- name: next_keys: the heads of the lines of the keys whose turn it is, as claim_one will make them, each with its key's figures
SELECT {claiming_j}, k.rowid, k.waiting, k.active, k.rate
FROM keys k CROSS JOIN jobs j ON j.pk = (SELECT l.pk FROM jobs l WHERE l.qid = k.qid AND l.key = k.key AND l.state = 2 AND l.key IS NOT NULL
                                            AND (l.at_ms IS NULL OR l.at_ms > ?2) ORDER BY l.priority DESC, l.seq LIMIT 1)
WHERE k.qid = ?1 AND k.ready = 1 ORDER BY k.turn LIMIT ?3;

-- name: set_key_rate: the state of a key's rate limit
UPDATE keys SET rate = ?, rate_until_ms = ?, held_ms = ? WHERE qid = ? AND key = ?;

-- name: hold_key: no start of this key before a time
INSERT INTO keys (qid, key, waiting, active, turn, ready, held_ms) VALUES (?, ?, 0, 0, 0, 0, ?)
ON CONFLICT (qid, key) DO UPDATE SET held_ms = max(held_ms, excluded.held_ms);

-- name: hold_key_until: another time, sooner or later
UPDATE keys SET held_ms = ? WHERE qid = ? AND key = ?;

-- name: lift_key: it may start again at once, as far as a hold is concerned
UPDATE keys SET held_ms = 0 WHERE qid = ? AND key = ?;

-- name: lift_keys: the same for all keys of a queue
UPDATE keys SET held_ms = 0 WHERE qid = ? AND held_ms > 0;

-- name: free_held_keys: their time has come
UPDATE keys SET ready = 1 WHERE qid = ?1 AND ready = 2 AND held_ms <= ?2;

-- name: next_held: when the next held key may go on
SELECT held_ms FROM keys WHERE qid = ? AND ready = 2 ORDER BY held_ms LIMIT 1;

-- name: key_overrides: limits given to single keys
SELECT key, n, limits FROM key_limits WHERE qid = ?;

-- name: any_override: whether a single key has limits of its own
SELECT 1 FROM key_limits WHERE qid = ? LIMIT 1;

-- name: overrides_of: limits given to keys of a list
SELECT key, limits FROM key_limits WHERE qid = ? AND key IN (SELECT value FROM json_each(?));

-- name: set_key_override: give them
INSERT INTO key_limits VALUES (?, ?, ?, ?) ON CONFLICT (qid, key) DO UPDATE SET n = excluded.n, limits = excluded.limits;

-- name: drop_key_override: take them back
DELETE FROM key_limits WHERE qid = ? AND key = ?;

-- name: some_keys: keys of a queue after one, for going through all of them in steps
SELECT key FROM keys WHERE qid = ? AND key > ? ORDER BY key LIMIT ?;

-- name: idle_rates: keys kept only for a rate limit whose time has passed
DELETE FROM keys WHERE qid = ?1 AND waiting = 0 AND active = 0 AND held_ms <= ?2 AND rate_until_ms <= ?2
    AND key IN (SELECT key FROM keys WHERE qid = ?1 AND waiting = 0 AND active = 0 LIMIT ?3);
