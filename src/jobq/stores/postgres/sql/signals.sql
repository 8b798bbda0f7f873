-- Sleeping workers, and listeners to topics.

-- name: fall_asleep: register a worker that found nothing in a queue
INSERT INTO sleepers (qid, worker, mailbox, slots, since_ms) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (qid, worker) DO UPDATE
SET mailbox = excluded.mailbox, slots = excluded.slots, since_ms = excluded.since_ms,
    stays = excluded.stays;

-- name: wake_up: delete the registrations of a worker that is awake
DELETE FROM sleepers WHERE worker = $1;

-- name: sleepers: sleepers of a queue; the last to look come first, because they are probably alive
SELECT worker, slots, mailbox FROM sleepers WHERE qid = $1 ORDER BY since_ms DESC LIMIT $2;

-- name: listen: register a mailbox for a topic
INSERT INTO listeners (topic, mailbox, until_ms) VALUES ($1, $2, $3)
ON CONFLICT (topic, mailbox) DO UPDATE SET until_ms = excluded.until_ms;

-- name: unlisten: remove a mailbox from a topic
DELETE FROM listeners WHERE topic = $1 AND mailbox = $2;

-- name: listeners: the mailboxes of a topic
SELECT mailbox FROM listeners WHERE topic = $1;

-- name: heard: delete the listeners of a topic that occurs only once
DELETE FROM listeners WHERE topic = $1;

-- name: drop_mailbox: delete the listeners of a mailbox
DELETE FROM listeners WHERE mailbox = $1;

-- name: drop_sleepers_of_mailbox: delete the sleepers of a mailbox
DELETE FROM sleepers WHERE mailbox = $1;

-- name: watch_job: mark a job that has a listener
UPDATE jobs_hot SET flags = flags | 4 WHERE qid = $1 AND id = $2;
