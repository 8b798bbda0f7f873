-- Who sleeps, who listens.

-- name: fall_asleep: the worker found nothing in this queue
INSERT INTO sleepers VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (qid, worker) DO UPDATE SET port = excluded.port, pid = excluded.pid, slots = excluded.slots, since_ms = excluded.since_ms;

-- name: wake_up: the worker is back
DELETE FROM sleepers WHERE worker = ?;

-- name: sleepers: who could be woken for a queue; who looked last comes first, because it is most likely still there
SELECT worker, port, pid, slots FROM sleepers WHERE qid = ? ORDER BY since_ms DESC LIMIT ?;

-- name: listen: at this mailbox, for this topic
INSERT INTO listeners VALUES (?, ?, ?, ?) ON CONFLICT (topic, port) DO UPDATE SET pid = excluded.pid, until_ms = excluded.until_ms;

-- name: unlisten: no more
DELETE FROM listeners WHERE topic = ? AND port = ?;

-- name: listeners: the mailboxes for a topic
SELECT port FROM listeners WHERE topic = ?;

-- name: heard: a topic that comes up once has come up
DELETE FROM listeners WHERE topic = ?;

-- name: drop_mailbox: everything waiting at a mailbox that is closed
DELETE FROM listeners WHERE port = ?;

-- name: drop_sleepers_of_mailbox: likewise
DELETE FROM sleepers WHERE port = ?;

-- name: watch_job: its end is to be told
UPDATE jobs SET flags = flags | 4 WHERE qid = ? AND id = ? AND state < 4;
