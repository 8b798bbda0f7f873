-- Operations on queues.

-- name: some_waiting: waiting jobs of a plain queue
SELECT id FROM jobs_hot WHERE qid = $1 AND state = 2 AND key IS NULL
ORDER BY priority DESC, seq LIMIT $2;

-- name: some_waiting_keyed: waiting jobs of a keyed queue
SELECT id FROM jobs_hot WHERE qid = $1 AND state = 2 AND key IS NOT NULL LIMIT $2;

-- name: some_timed: jobs of a state that the clock index lists
SELECT id FROM jobs_hot WHERE qid = $1 AND state = $2 AND at_ms IS NOT NULL LIMIT $3;

-- name: ended_before: jobs that ended before a time, among those that expire first
SELECT {job} FROM (
    SELECT {job} FROM jobs_ended WHERE qid = $1 AND state = $2 AND keep = $3
    ORDER BY at_ms LIMIT $5 + 1000
) AS first
WHERE finished_ms <= $4 LIMIT $5;

-- name: some_jobs: jobs of a queue
SELECT {job} FROM jobs WHERE qid = $1 LIMIT $2 FOR NO KEY UPDATE;

-- name: drop_keys: delete the keys of a queue
DELETE FROM keys WHERE qid = $1;

-- name: drop_key_limits: delete the limits of its keys
DELETE FROM key_limits WHERE qid = $1;

-- name: drop_locks: delete its unique locks
DELETE FROM locks WHERE qid = $1;

-- name: drop_schedules: delete its schedules
DELETE FROM schedules WHERE qid = $1;

-- name: drop_minutes: delete its metrics
DELETE FROM minutes WHERE qid = $1;

-- name: drop_sleepers: delete the registrations of sleeping workers
DELETE FROM sleepers WHERE qid = $1;
