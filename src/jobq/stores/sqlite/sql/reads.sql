-- Reads for users and operators.

-- A listing reads an index in sections (reads._sections) and continues after values of the index.

-- name: page_waiting: waiting jobs of a plain queue, from the back
SELECT {job} FROM jobs
WHERE qid = ?1 AND state = 2 AND key IS NULL AND (priority, -seq) > (?3, -?4)
ORDER BY priority, seq DESC LIMIT ?2;

-- name: page_waiting_keyed: waiting jobs of a keyed queue, key by key, each from the back
SELECT {job} FROM jobs
WHERE qid = ?1 AND state = 2 AND key IS NOT NULL
    AND key <= ?3 AND (key < ?3 OR (priority, -seq) > (?4, -?5))
ORDER BY key DESC, priority, seq DESC LIMIT ?2;

-- name: page_timed: jobs of another state, from the latest time
SELECT {job} FROM jobs
WHERE qid = ?1 AND state = ?5 AND keep = ?6 AND at_ms <= ?3 AND (at_ms, pk) < (?3, ?4)
ORDER BY at_ms DESC, pk DESC LIMIT ?2;

-- The same indexes, without reading the jobs on the way: the job that follows ?2 others.

-- name: skip_waiting: a waiting job of a plain queue further on
SELECT {job} FROM jobs
WHERE qid = ?1 AND state = 2 AND key IS NULL AND (priority, -seq) > (?3, -?4)
ORDER BY priority, seq DESC LIMIT 1 OFFSET ?2;

-- name: skip_waiting_keyed: a waiting job of a keyed queue further on
SELECT {job} FROM jobs
WHERE qid = ?1 AND state = 2 AND key IS NOT NULL
    AND key <= ?3 AND (key < ?3 OR (priority, -seq) > (?4, -?5))
ORDER BY key DESC, priority, seq DESC LIMIT 1 OFFSET ?2;

-- name: skip_timed: a job of another state further on
SELECT {job} FROM jobs
WHERE qid = ?1 AND state = ?5 AND keep = ?6 AND at_ms <= ?3 AND (at_ms, pk) < (?3, ?4)
ORDER BY at_ms DESC, pk DESC LIMIT 1 OFFSET ?2;

-- name: page_waiting_oldest: waiting jobs of a plain queue, from the front
SELECT {job} FROM jobs
WHERE qid = ?1 AND state = 2 AND key IS NULL AND (priority, -seq) < (?3, -?4)
ORDER BY priority DESC, seq LIMIT ?2;

-- name: page_waiting_keyed_oldest: waiting jobs of a keyed queue, key by key, each from the front
SELECT {job} FROM jobs
WHERE qid = ?1 AND state = 2 AND key IS NOT NULL
    AND key >= ?3 AND (key > ?3 OR (priority, -seq) < (?4, -?5))
ORDER BY key, priority DESC, seq LIMIT ?2;

-- name: page_timed_oldest: jobs of another state, from the earliest time
SELECT {job} FROM jobs
WHERE qid = ?1 AND state = ?5 AND keep = ?6 AND at_ms >= ?3 AND (at_ms, pk) > (?3, ?4)
ORDER BY at_ms, pk LIMIT ?2;

-- name: head: since when the next job of a plain queue has been due
SELECT due_ms FROM jobs WHERE qid = ? AND state = 2 AND key IS NULL
ORDER BY priority DESC, seq LIMIT 1;

-- name: keyed_head: since when the next job of the next key has been due
SELECT j.due_ms FROM jobs j
WHERE j.qid = ?1 AND j.state = 2 AND j.key IS NOT NULL
    AND j.key = (SELECT key FROM keys WHERE qid = ?1 AND ready = 1 ORDER BY turn LIMIT 1)
ORDER BY j.priority DESC, j.seq LIMIT 1;

-- name: minutes: metrics since a minute
SELECT minute, {figures} FROM minutes WHERE qid = ? AND minute >= ? ORDER BY minute;

-- name: queues: all queues
SELECT {queue} FROM queues WHERE listed ORDER BY tenant, name;

-- name: queues_of: the queues of a tenant
SELECT {queue} FROM queues WHERE tenant = ? AND listed ORDER BY name;

-- name: entries: the entries of a queue's log after a position
SELECT at - ?1 * 1099511627776, entry FROM events
WHERE at > ?1 * 1099511627776 + ?2 AND at < (?1 + 1) * 1099511627776 ORDER BY at;

-- name: ack: store the position of a reader; it never goes back
INSERT INTO readers (qid, reader, pos) VALUES (?, ?, ?) ON CONFLICT (qid, reader) DO UPDATE
SET pos = max(pos, excluded.pos);

-- name: readers: the registered readers and their positions
SELECT reader, pos FROM readers WHERE qid = ? ORDER BY reader;

-- name: remove_reader: delete a reader
DELETE FROM readers WHERE qid = ? AND reader = ?;

-- name: reader: the position of a reader
SELECT pos FROM readers WHERE qid = ? AND reader = ?;

-- name: trimmed: the incarnation of the last entry that was dropped from a queue's log
SELECT value FROM meta WHERE name = 'trimmed.' || ?;
