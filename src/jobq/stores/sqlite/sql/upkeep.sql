-- Upkeep by the clock, in bounded steps.

-- name: queues: how many queues there are
SELECT count(*) FROM queues;

-- name: next_queues: the next queues in order, and whether a tick may have something to do: by the
-- clock, for keys, or because jobs are where no claim finds them
SELECT {queue},
    EXISTS (SELECT 1 FROM jobs WHERE qid = q.qid AND state = 0 AND keep = 0 AND at_ms <= ?1)
    OR EXISTS (SELECT 1 FROM jobs WHERE qid = q.qid AND state = 1 AND keep = 0 AND at_ms <= ?1)
    OR EXISTS (SELECT 1 FROM jobs WHERE qid = q.qid AND state = 2 AND keep = 0 AND at_ms <= ?1)
    OR EXISTS (SELECT 1 FROM jobs WHERE qid = q.qid AND state = 3 AND keep = 0 AND at_ms <= ?1)
    OR EXISTS (SELECT 1 FROM jobs WHERE qid = q.qid AND state = 4 AND keep = 0 AND at_ms <= ?1)
    OR EXISTS (SELECT 1 FROM jobs WHERE qid = q.qid AND state = 4 AND keep = 1 AND at_ms <= ?1)
    OR EXISTS (SELECT 1 FROM jobs WHERE qid = q.qid AND state = 5 AND keep = 0 AND at_ms <= ?1)
    OR EXISTS (SELECT 1 FROM jobs WHERE qid = q.qid AND state = 5 AND keep = 1 AND at_ms <= ?1)
    OR EXISTS (SELECT 1 FROM jobs WHERE qid = q.qid AND state = 6 AND keep = 0 AND at_ms <= ?1)
    OR EXISTS (SELECT 1 FROM jobs WHERE qid = q.qid AND state = 6 AND keep = 1 AND at_ms <= ?1)
    OR EXISTS (SELECT 1 FROM minutes WHERE qid = q.qid AND minute < ?2)
    OR CASE WHEN mode = 'keyed' THEN
        EXISTS (SELECT 1 FROM keys WHERE qid = q.qid)
        OR EXISTS (SELECT 1 FROM jobs WHERE qid = q.qid AND state = 2 AND key IS NULL)
    ELSE EXISTS (SELECT 1 FROM jobs WHERE qid = q.qid AND state = 2 AND key IS NOT NULL) END
FROM queues q WHERE qid > ?3 ORDER BY qid LIMIT ?4;

-- name: past_retention: ended jobs whose retention is over, in order
SELECT pk, flags FROM jobs WHERE qid = ? AND state = ? AND keep = ? AND at_ms <= ?
ORDER BY at_ms LIMIT ?;

-- name: newest_beyond: the newest of the ended jobs beyond the number that is kept
SELECT at_ms, pk FROM jobs WHERE qid = ? AND state = ? AND keep = 0 AND at_ms IS NOT NULL
ORDER BY at_ms DESC, pk DESC LIMIT 1 OFFSET ?;

-- name: beyond_count: that one and those that expire before it, in order
SELECT pk, flags FROM jobs
WHERE qid = ? AND state = ? AND keep = 0 AND at_ms IS NOT NULL AND (at_ms, pk) <= (?, ?)
ORDER BY at_ms, pk LIMIT ?;

-- name: sweep_minutes: metrics of a queue that are past their time
DELETE FROM minutes
WHERE qid = ?1 AND minute IN (SELECT minute FROM minutes WHERE qid = ?1 AND minute < ?2 LIMIT ?3);

-- A sweep reads the next rows in the order of the primary key and deletes the expired ones (see
-- upkeep.py). These tables have no index on their time, because it changes often.

-- name: next_workers: the next workers in order, with the time they count as present until
SELECT name, until_ms FROM workers WHERE name > ? ORDER BY name LIMIT ?;

-- name: delete_worker: a worker that is gone
DELETE FROM workers WHERE name = ?;

-- name: next_calls: the next remembered calls in order, with their time
SELECT worker, at_ms FROM calls WHERE worker > ? ORDER BY worker LIMIT ?;

-- name: delete_call: a call that nobody will repeat
DELETE FROM calls WHERE worker = ?;

-- name: next_listeners: the next listeners in order, with the time they are kept until
SELECT topic, port, until_ms FROM listeners WHERE (topic, port) > (?, ?)
ORDER BY topic, port LIMIT ?;

-- name: delete_listener: a listener that did not unregister
DELETE FROM listeners WHERE topic = ? AND port = ?;

-- name: next_sleepers: the next sleepers in order, with the time they fell asleep
SELECT qid, worker, since_ms FROM sleepers WHERE (qid, worker) > (?, ?)
ORDER BY qid, worker LIMIT ?;

-- name: delete_sleeper: a sleeper that did not wake up
DELETE FROM sleepers WHERE qid = ? AND worker = ?;

-- name: oldest_entries: the oldest entries of a queue's log
SELECT at - ?1 * 1099511627776, logged FROM events
WHERE at > ?1 * 1099511627776 AND at < (?1 + 1) * 1099511627776 ORDER BY at LIMIT ?2;

-- name: slowest_reader: the position of the slowest registered reader
SELECT min(pos) FROM readers WHERE qid = ?;

-- name: trim_log: delete the entries of a queue's log up to a position
DELETE FROM events WHERE at > ?1 * 1099511627776 AND at <= ?1 * 1099511627776 + ?2;

-- name: entry_at: an entry of a queue's log
SELECT entry FROM events WHERE at = ?1 * 1099511627776 + ?2;

-- name: trimmed: store the incarnation of the last entry that was dropped
INSERT INTO meta (name, value) VALUES (?, ?)
ON CONFLICT (name) DO UPDATE SET value = excluded.value;
