-- Jobs that come by the clock.

-- name: rearm: an after-complete schedule goes on
UPDATE schedules SET next_ms = ? WHERE qid = ? AND id = ?;

-- name: schedule: one of them
SELECT {schedule} FROM schedules WHERE qid = ? AND id = ?;

-- name: put_schedule: new, or changed and so started over (meta: jobq 0.1 kept parts of the spec there)
INSERT INTO schedules (qid, id, spec, meta, next_ms, fired, last_ms, paused, created_ms) VALUES (?, ?, ?, '{}', ?, 0, NULL, 0, ?)
ON CONFLICT (qid, id) DO UPDATE SET spec = excluded.spec, meta = excluded.meta, next_ms = excluded.next_ms, fired = 0, last_ms = NULL,
    created_ms = excluded.created_ms;

-- name: drop_schedule: forget it
DELETE FROM schedules WHERE qid = ? AND id = ?;

-- name: pause_schedule: or go on
UPDATE schedules SET paused = ? WHERE qid = ? AND id = ?;

-- name: of_queue: all of one queue
SELECT {schedule} FROM schedules WHERE qid = ? ORDER BY id LIMIT ?;

-- name: of_all: all there are
SELECT {schedule} FROM schedules ORDER BY qid, id LIMIT ?;

-- name: due: whose time has come, soonest first
SELECT {schedule} FROM schedules WHERE next_ms <= ? AND paused = 0 AND next_ms IS NOT NULL ORDER BY next_ms LIMIT ?;

-- name: due_of_queue: the same of one queue
SELECT {schedule} FROM schedules WHERE qid = ? AND next_ms <= ? AND paused = 0 AND next_ms IS NOT NULL ORDER BY next_ms LIMIT ?;

-- name: fired: moved on, if this was still its next time
UPDATE schedules SET next_ms = ?, fired = fired + ?, last_ms = ifnull(?, last_ms) WHERE qid = ? AND id = ? AND next_ms = ? AND paused = 0;
