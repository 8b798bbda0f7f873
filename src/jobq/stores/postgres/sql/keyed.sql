-- Keyed queues: which keys may start a job, and the counts that decide it. The lock on the queue's
-- row protects the rows of its keys.

-- name: queue_by_qid: a queue by number
SELECT {queue} FROM queues WHERE qid = $1;

-- name: lock_queue_by_qid: the same, locked until the transaction ends
SELECT {queue} FROM queues WHERE qid = $1 FOR NO KEY UPDATE;

-- name: figures: the counts of the keys of a list
SELECT kid, key, waiting, active, ready, held_ms, rate_until_ms
FROM keys WHERE qid = $1 AND key = ANY ($2::text[]);

-- name: add_key: insert a key
INSERT INTO keys (qid, key, waiting, active, turn, ready) VALUES ($1, $2, $3, $4, $5, $6);

-- name: count_key: write the counts of a key that is as ready as before; changes no index
UPDATE keys SET waiting = $1, active = $2 WHERE kid = $3;

-- name: set_key: write the counts, and ready: 1 may start, 2 may start after its hold, 0 may not
UPDATE keys SET waiting = $1, active = $2, ready = $3 WHERE kid = $4;

-- name: rotate: write the counts of a key that has started a job, and its new turn
UPDATE keys SET waiting = $1, active = $2, ready = $3, turn = $4 WHERE kid = $5;

-- name: drop_key: delete a key without jobs, hold or rate
DELETE FROM keys WHERE kid = $1;

-- name: next_keys: the next job of each ready key in the order of their turns (rows.KeyHead)
SELECT {claiming_j}, k.kid, k.waiting, k.active, k.rate
FROM keys k CROSS JOIN LATERAL (
    SELECT {claimed} FROM jobs_hot l
    WHERE l.qid = k.qid AND l.key = k.key AND l.state = 2 AND l.key IS NOT NULL
        AND (l.at_ms IS NULL OR l.at_ms > $2)
    ORDER BY l.priority DESC, l.seq LIMIT 1
) j
WHERE k.qid = $1 AND k.ready = 1 ORDER BY k.turn LIMIT $3;

-- name: set_key_rate: write the state of a key's rate
UPDATE keys SET rate = $1, rate_until_ms = $2, held_ms = $3 WHERE qid = $4 AND key = $5;

-- name: hold_key: hold a key; the later end stays
INSERT INTO keys (qid, key, waiting, active, turn, ready, held_ms) VALUES ($1, $2, 0, 0, 0, 0, $3)
ON CONFLICT (qid, key) DO UPDATE SET held_ms = greatest(keys.held_ms, excluded.held_ms);

-- name: hold_key_until: change the end of a key's hold
UPDATE keys SET held_ms = $1 WHERE qid = $2 AND key = $3;

-- name: lift_key: end the hold of a key
UPDATE keys SET held_ms = 0 WHERE qid = $1 AND key = $2;

-- name: lift_keys: end the holds of all keys of a queue
UPDATE keys SET held_ms = 0 WHERE qid = $1 AND held_ms > 0;

-- name: free_held_keys: make keys ready whose hold is over
UPDATE keys SET ready = 1 WHERE qid = $1 AND ready = 2 AND held_ms <= $2;

-- name: next_held: when the next hold of a key ends
SELECT held_ms FROM keys WHERE qid = $1 AND ready = 2 ORDER BY held_ms LIMIT 1;

-- name: key_overrides: the limits of single keys of a queue
SELECT key, limits FROM key_limits WHERE qid = $1;

-- name: any_override: whether a single key of a queue has limits
SELECT 1 FROM key_limits WHERE qid = $1 LIMIT 1;

-- name: overrides_of: the limits of those keys of a list that have any
SELECT key, limits FROM key_limits WHERE qid = $1 AND key = ANY ($2::text[]);

-- name: set_key_override: set the limits of a key
INSERT INTO key_limits (qid, key, n, limits) VALUES ($1, $2, $3, $4)
ON CONFLICT (qid, key) DO UPDATE SET n = excluded.n, limits = excluded.limits;

-- name: drop_key_override: delete the limits of a key
DELETE FROM key_limits WHERE qid = $1 AND key = $2;

-- name: some_keys: the next keys of a queue in order
SELECT key FROM keys WHERE qid = $1 AND key > $2 ORDER BY key LIMIT $3;

-- name: keys_after: the next keys of a queue in order, and whether they have neither jobs nor a rate
-- or a hold that still counts
SELECT key, waiting = 0 AND active = 0 AND held_ms <= $3 AND rate_until_ms <= $3
FROM keys WHERE qid = $1 AND key > $2 ORDER BY key LIMIT $4;

-- name: delete_keys: keys that have neither
DELETE FROM keys WHERE qid = $1 AND key = ANY ($2::text[]);
