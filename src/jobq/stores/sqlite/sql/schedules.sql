-- Schedules.

-- name: rearm: set the next time of an after-complete schedule
UPDATE schedules SET next_ms = ? WHERE qid = ? AND id = ?;

-- name: schedule: a schedule by id
SELECT {schedule} FROM schedules WHERE qid = ? AND id = ?;

-- name: put_schedule: insert a schedule, or replace it and start it over (jobq 0.1 used meta)
INSERT INTO schedules (qid, id, spec, meta, next_ms, fired, last_ms, paused, created_ms)
VALUES (?, ?, ?, '{}', ?, 0, NULL, 0, ?)
ON CONFLICT (qid, id) DO UPDATE
SET spec = excluded.spec, meta = excluded.meta, next_ms = excluded.next_ms, fired = 0,
    last_ms = NULL, created_ms = excluded.created_ms;

-- name: drop_schedule: delete a schedule
DELETE FROM schedules WHERE qid = ? AND id = ?;

-- name: pause_schedule: pause or resume a schedule
UPDATE schedules SET paused = ? WHERE qid = ? AND id = ?;

-- name: of_queue: the schedules of a queue
SELECT {schedule} FROM schedules WHERE qid = ? ORDER BY id LIMIT ?;

-- name: of_all: all schedules
SELECT {schedule} FROM schedules ORDER BY qid, id LIMIT ?;

-- name: due: the schedules whose time has come, in order
SELECT {schedule} FROM schedules WHERE next_ms <= ? AND paused = 0 AND next_ms IS NOT NULL
ORDER BY next_ms LIMIT ?;

-- name: due_of_queue: the same for one queue
SELECT {schedule} FROM schedules
WHERE qid = ? AND next_ms <= ? AND paused = 0 AND next_ms IS NOT NULL ORDER BY next_ms LIMIT ?;

-- name: fired: set the next time, if the expected time is still the next one
UPDATE schedules SET next_ms = ?, fired = fired + ?, last_ms = ifnull(?, last_ms)
WHERE qid = ? AND id = ? AND next_ms = ? AND paused = 0;
