-- Keyed queues: who may start next, and the figures that decide it.

-- name: queue_by_qid: one queue by number
SELECT * FROM queues WHERE qid = ?;

-- name: add_to_key: what a transaction did to a key's figures; a key that was not there gets a turn
INSERT INTO keys (qid, key, waiting, active, turn, ready) VALUES (?, ?, ?, ?, ?, 0)
ON CONFLICT (qid, key) DO UPDATE SET waiting = waiting + excluded.waiting, active = active + excluded.active;

-- name: settle_keys: ready: 1 may start, 2 may start once it is no longer held, 0 neither. Answers each, and whether it is idle
UPDATE keys SET ready = CASE WHEN waiting > 0
        AND active < ifnull((SELECT l.n FROM key_limits l WHERE l.qid = keys.qid AND l.key = keys.key AND l.n IS NOT NULL), ?1)
    THEN CASE WHEN held_ms > ?2 THEN 2 ELSE 1 END ELSE 0 END
WHERE qid = ?3 AND key IN (SELECT value FROM json_each(?4))
RETURNING key, ready, waiting = 0 AND active = 0 AND held_ms <= ?2 AND rate_until_ms <= ?2;

-- name: drop_keys: nothing waiting, nothing active, nothing to remember
DELETE FROM keys WHERE qid = ? AND key IN (SELECT value FROM json_each(?));

-- name: next_keys: the keys whose turn it is, each with the head of its line
SELECT k.key, (SELECT j.pk FROM jobs j WHERE j.qid = k.qid AND j.key = k.key AND j.state = 2 AND j.key IS NOT NULL
                  AND (j.at_ms IS NULL OR j.at_ms > ?2) ORDER BY j.priority DESC, j.seq LIMIT 1), k.rate
FROM keys k WHERE k.qid = ?1 AND k.ready = 1 ORDER BY k.turn LIMIT ?3;

-- name: heads: the head of a plain line, with what its jobs cost
SELECT pk, options FROM jobs WHERE qid = ?1 AND state = 2 AND key IS NULL AND (at_ms IS NULL OR at_ms > ?2) ORDER BY priority DESC, seq LIMIT ?3;

-- name: cost_of: options of jobs, for their cost
SELECT pk, options FROM jobs WHERE pk IN (SELECT value FROM json_each(?));

-- name: rotate: a key had its turn
UPDATE keys SET turn = ? WHERE qid = ? AND key = ?;

-- name: set_key_rate: the state of a key's rate limit
UPDATE keys SET rate = ?, rate_until_ms = ?, held_ms = ? WHERE qid = ? AND key = ?;

-- name: hold_key: no start of this key before a time
INSERT INTO keys (qid, key, waiting, active, turn, ready, held_ms) VALUES (?, ?, 0, 0, 0, 0, ?)
ON CONFLICT (qid, key) DO UPDATE SET held_ms = max(held_ms, excluded.held_ms);

-- name: free_held_keys: their time has come
UPDATE keys SET ready = 1 WHERE qid = ?1 AND ready = 2 AND held_ms <= ?2;

-- name: next_held: when the next held key may go on
SELECT held_ms FROM keys WHERE qid = ? AND ready = 2 ORDER BY held_ms LIMIT 1;

-- name: key_overrides: limits given to single keys
SELECT key, n, limits FROM key_limits WHERE qid = ?;

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
