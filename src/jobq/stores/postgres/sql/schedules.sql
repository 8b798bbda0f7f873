-- Schedules.

-- name: rearm: set the next time of an after-complete schedule
UPDATE schedules SET next_ms = $1 WHERE qid = $2 AND id = $3;

-- name: schedule: a schedule by id
SELECT {schedule} FROM schedules WHERE qid = $1 AND id = $2;

-- name: put_schedule: insert a schedule, or replace it and start it over
INSERT INTO schedules (qid, id, spec, next_ms, fired, last_ms, paused, created_ms)
VALUES ($1, $2, $3, $4, 0, NULL, 0, $5)
ON CONFLICT (qid, id) DO UPDATE
SET spec = excluded.spec, next_ms = excluded.next_ms, fired = 0, last_ms = NULL,
    created_ms = excluded.created_ms;

-- name: drop_schedule: delete a schedule
DELETE FROM schedules WHERE qid = $1 AND id = $2;

-- name: pause_schedule: pause or resume a schedule
UPDATE schedules SET paused = $1 WHERE qid = $2 AND id = $3;

-- name: of_queue: the schedules of a queue
SELECT {schedule} FROM schedules WHERE qid = $1 ORDER BY id LIMIT $2;

-- name: of_all: all schedules
SELECT {schedule} FROM schedules ORDER BY qid, id LIMIT $1;

-- name: due: the schedules whose time has come, in order
SELECT {schedule} FROM schedules WHERE next_ms <= $1 AND paused = 0 AND next_ms IS NOT NULL
ORDER BY next_ms LIMIT $2;

-- name: due_of_queue: the same for one queue
SELECT {schedule} FROM schedules
WHERE qid = $1 AND next_ms <= $2 AND paused = 0 AND next_ms IS NOT NULL ORDER BY next_ms LIMIT $3;

-- name: fired: set the next time, if the expected time is still the next one
UPDATE schedules SET next_ms = $1, fired = fired + $2, last_ms = coalesce($3, last_ms)
WHERE qid = $4 AND id = $5 AND next_ms = $6 AND paused = 0;
