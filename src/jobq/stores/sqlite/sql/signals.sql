-- Sleeping workers, and listeners to topics.

-- name: fall_asleep: register a worker that found nothing in a queue
INSERT INTO sleepers (qid, worker, port, pid, slots, since_ms) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (qid, worker) DO UPDATE
SET port = excluded.port, pid = excluded.pid, slots = excluded.slots, since_ms = excluded.since_ms;

-- name: wake_up: delete the registrations of a worker that is awake
DELETE FROM sleepers WHERE worker = ?;

-- name: sleepers: sleepers of a queue; the last to look come first, because they are probably alive
SELECT worker, slots, port, pid FROM sleepers WHERE qid = ? ORDER BY since_ms DESC LIMIT ?;

-- name: listen: register a mailbox for a topic
INSERT INTO listeners (topic, port, pid, until_ms) VALUES (?, ?, ?, ?)
ON CONFLICT (topic, port) DO UPDATE SET pid = excluded.pid, until_ms = excluded.until_ms;

-- name: unlisten: remove a mailbox from a topic
DELETE FROM listeners WHERE topic = ? AND port = ? AND pid = ?;

-- name: listeners: the mailboxes of a topic
SELECT port, pid FROM listeners WHERE topic = ?;

-- name: heard: delete the listeners of a topic that occurs only once
DELETE FROM listeners WHERE topic = ?;

-- name: drop_mailbox: delete the listeners of a mailbox
DELETE FROM listeners WHERE port = ? AND pid = ?;

-- name: drop_sleepers_of_mailbox: delete the sleepers of a mailbox
DELETE FROM sleepers WHERE port = ? AND pid = ?;

-- name: watch_job: mark a job that has a listener
UPDATE jobs SET flags = flags | 4 WHERE qid = ? AND id = ? AND state < 4;
