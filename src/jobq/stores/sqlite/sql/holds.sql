-- Holds: no start of a queue (key '') or of one of its keys before a time.

-- name: put_hold: the later end stays
INSERT INTO holds VALUES (?, ?, ?, ?)
ON CONFLICT (qid, key) DO UPDATE SET until_ms = excluded.until_ms, ms = excluded.ms WHERE excluded.until_ms > holds.until_ms;

-- name: hold: until when
SELECT until_ms FROM holds WHERE qid = ? AND key = ? AND until_ms > ?;

-- name: held_keys: those that end first
SELECT key, until_ms FROM holds WHERE qid = ? AND key != '' AND until_ms > ? ORDER BY until_ms LIMIT ?;

-- name: lift_hold: of the queue or of one key
DELETE FROM holds WHERE qid = ? AND key = ?;

-- name: lift_holds: all of a queue
DELETE FROM holds WHERE qid = ?;

-- name: odd_holds: those that are over, and those that a clock that was set back has made longer than they were asked for
SELECT qid, key, until_ms, ms FROM holds WHERE until_ms <= ?1 OR until_ms > ?1 + ms LIMIT ?2;

-- name: end_hold_at: another end
UPDATE holds SET until_ms = ? WHERE qid = ? AND key = ?;
