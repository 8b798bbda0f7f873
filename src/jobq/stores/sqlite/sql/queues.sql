-- What operators do to queues.

-- name: some_waiting: of a plain queue
SELECT id FROM jobs WHERE qid = ? AND state = 2 AND key IS NULL LIMIT ?;

-- name: some_waiting_keyed: of a keyed queue
SELECT id FROM jobs WHERE qid = ? AND state = 2 AND key IS NOT NULL LIMIT ?;

-- name: some_timed: of a state that the clock index serves
SELECT id FROM jobs WHERE qid = ? AND state = ? AND keep = 0 AND at_ms IS NOT NULL LIMIT ?;

-- name: ended_before: among the first to go, those that ended before a time
SELECT {job} FROM (SELECT {job} FROM jobs WHERE qid = ?1 AND state = ?2 AND keep = ?3 AND at_ms IS NOT NULL ORDER BY at_ms LIMIT ?5 + 1000)
WHERE finished_ms <= ?4 LIMIT ?5;

-- name: some_jobs: of a queue
SELECT {job} FROM jobs WHERE qid = ? LIMIT ?;

-- name: drop_keys: with the queue
DELETE FROM keys WHERE qid = ?;

-- name: drop_key_limits: with the queue
DELETE FROM key_limits WHERE qid = ?;

-- name: drop_locks: with the queue
DELETE FROM locks WHERE qid = ?;

-- name: drop_schedules: with the queue
DELETE FROM schedules WHERE qid = ?;

-- name: drop_minutes: with the queue
DELETE FROM minutes WHERE qid = ?;

-- name: drop_sleepers: with the queue
DELETE FROM sleepers WHERE qid = ?;
