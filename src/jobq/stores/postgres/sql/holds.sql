-- Holds: no job of a queue (key '') or of one of its keys starts before a time.

-- name: put_hold: hold a queue or key; the later end of two holds stays
INSERT INTO holds (qid, key, until_ms, ms) VALUES ($1, $2, $3, $4)
ON CONFLICT (qid, key) DO UPDATE SET until_ms = excluded.until_ms, ms = excluded.ms
WHERE excluded.until_ms > holds.until_ms;

-- name: hold: the end of a hold that is not over
SELECT until_ms FROM holds WHERE qid = $1 AND key = $2 AND until_ms > $3;

-- name: held_keys: the held keys of a queue; the first to end come first
SELECT key, until_ms FROM holds WHERE qid = $1 AND key != '' AND until_ms > $2
ORDER BY until_ms LIMIT $3;

-- name: lift_hold: delete the hold of a queue or of one key
DELETE FROM holds WHERE qid = $1 AND key = $2;

-- name: lift_holds: delete all holds of a queue
DELETE FROM holds WHERE qid = $1;

-- name: odd_holds: holds that are over, and those that are too long since the clock was set back
SELECT qid, key, until_ms, ms FROM holds WHERE until_ms <= $1 OR until_ms > $1 + ms LIMIT $2;

-- name: end_hold_at: change the end of a hold
UPDATE holds SET until_ms = $1 WHERE qid = $2 AND key = $3;
