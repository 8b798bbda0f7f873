-- Reads for users and operators.

-- A listing reads an index in sections (reads._sections) and continues after values of the index.

-- name: page_waiting: waiting jobs of a plain queue, from the back
(
    SELECT {job} FROM jobs_hot
    WHERE qid = $1 AND state = 2 AND key IS NULL AND priority = $3 AND seq < $4
    ORDER BY seq DESC LIMIT $2
)
UNION ALL
(
    SELECT {job} FROM jobs_hot
    WHERE qid = $1 AND state = 2 AND key IS NULL AND priority > $3
    ORDER BY priority, seq DESC LIMIT $2
)
LIMIT $2;

-- name: page_waiting_keyed: waiting jobs of a keyed queue, key by key, each from the back
(
    SELECT {job} FROM jobs_hot
    WHERE qid = $1 AND state = 2 AND key IS NOT NULL AND key = $3
        AND (priority > $4 OR (priority = $4 AND seq < $5))
    ORDER BY priority, seq DESC LIMIT $2
)
UNION ALL
(
    SELECT {job} FROM jobs_hot
    WHERE qid = $1 AND state = 2 AND key IS NOT NULL AND key < $3
    ORDER BY key DESC, priority, seq DESC LIMIT $2
)
LIMIT $2;

-- name: page_timed: jobs of another state, from the latest time
SELECT {job} FROM jobs
WHERE qid = $1 AND state = $5 AND keep = $6 AND at_ms IS NOT NULL AND (at_ms, pk) < ($3, $4)
ORDER BY at_ms DESC, pk DESC LIMIT $2;

-- The same indexes, without sending the jobs on the way: the job that follows $2 others.

-- name: skip_waiting: a waiting job of a plain queue further on
(
    SELECT {job} FROM jobs_hot
    WHERE qid = $1 AND state = 2 AND key IS NULL AND priority = $3 AND seq < $4
    ORDER BY seq DESC LIMIT $2::bigint + 1
)
UNION ALL
(
    SELECT {job} FROM jobs_hot
    WHERE qid = $1 AND state = 2 AND key IS NULL AND priority > $3
    ORDER BY priority, seq DESC LIMIT $2::bigint + 1
)
LIMIT 1 OFFSET $2::bigint;

-- name: skip_waiting_keyed: a waiting job of a keyed queue further on
(
    SELECT {job} FROM jobs_hot
    WHERE qid = $1 AND state = 2 AND key IS NOT NULL AND key = $3
        AND (priority > $4 OR (priority = $4 AND seq < $5))
    ORDER BY priority, seq DESC LIMIT $2::bigint + 1
)
UNION ALL
(
    SELECT {job} FROM jobs_hot
    WHERE qid = $1 AND state = 2 AND key IS NOT NULL AND key < $3
    ORDER BY key DESC, priority, seq DESC LIMIT $2::bigint + 1
)
LIMIT 1 OFFSET $2::bigint;

-- name: skip_timed: a job of another state further on
SELECT {job} FROM jobs
WHERE qid = $1 AND state = $5 AND keep = $6 AND at_ms IS NOT NULL AND (at_ms, pk) < ($3, $4)
ORDER BY at_ms DESC, pk DESC LIMIT 1 OFFSET $2::bigint;

-- name: page_waiting_oldest: waiting jobs of a plain queue, from the front
(
    SELECT {job} FROM jobs_hot
    WHERE qid = $1 AND state = 2 AND key IS NULL AND priority = $3 AND seq > $4
    ORDER BY seq LIMIT $2
)
UNION ALL
(
    SELECT {job} FROM jobs_hot
    WHERE qid = $1 AND state = 2 AND key IS NULL AND priority < $3
    ORDER BY priority DESC, seq LIMIT $2
)
LIMIT $2;

-- name: page_waiting_keyed_oldest: waiting jobs of a keyed queue, key by key, each from the front
(
    SELECT {job} FROM jobs_hot
    WHERE qid = $1 AND state = 2 AND key IS NOT NULL AND key = $3
        AND (priority < $4 OR (priority = $4 AND seq > $5))
    ORDER BY priority DESC, seq LIMIT $2
)
UNION ALL
(
    SELECT {job} FROM jobs_hot
    WHERE qid = $1 AND state = 2 AND key IS NOT NULL AND key > $3
    ORDER BY key, priority DESC, seq LIMIT $2
)
LIMIT $2;

-- name: page_timed_oldest: jobs of another state, from the earliest time
SELECT {job} FROM jobs
WHERE qid = $1 AND state = $5 AND keep = $6 AND at_ms IS NOT NULL AND (at_ms, pk) > ($3, $4)
ORDER BY at_ms, pk LIMIT $2;

-- name: head: since when the next job of a plain queue has been due
SELECT due_ms FROM jobs_hot WHERE qid = $1 AND state = 2 AND key IS NULL
ORDER BY priority DESC, seq LIMIT 1;

-- name: keyed_head: since when the next job of the next key has been due
SELECT due_ms FROM jobs_hot
WHERE qid = $1 AND state = 2 AND key IS NOT NULL
    AND key = (SELECT key FROM keys WHERE qid = $1 AND ready = 1 ORDER BY turn LIMIT 1)
ORDER BY priority DESC, seq LIMIT 1;

-- name: queues: all queues
SELECT {queue} FROM queues WHERE listed = 1 ORDER BY tenant, name;

-- name: queues_of: the queues of a tenant
SELECT {queue} FROM queues WHERE tenant = $1 AND listed = 1 ORDER BY name;

-- name: entries: the entries of a queue's log after a position
SELECT n.pos, n.number, n.incarnation, e.at_ms, e.worker, e.items, e.starts
FROM numbers n JOIN entries e ON e.slot = n.slot AND e.eid = n.eid
WHERE n.qid = $1 AND n.pos > greatest($2, (SELECT dropped FROM counts WHERE qid = $1))
ORDER BY n.pos LIMIT $3;

-- name: ack: store the position of a reader; it never goes back
INSERT INTO readers (qid, reader, pos) VALUES ($1, $2, $3) ON CONFLICT (qid, reader) DO UPDATE
SET pos = greatest(readers.pos, excluded.pos);

-- name: readers: the registered readers and their positions
SELECT reader, pos FROM readers WHERE qid = $1 ORDER BY reader;

-- name: remove_reader: delete a reader
DELETE FROM readers WHERE qid = $1 AND reader = $2;

-- name: reader: the position of a reader
SELECT pos FROM readers WHERE qid = $1 AND reader = $2;

-- name: trimmed: the incarnation of the last entry that was dropped from a queue's log
SELECT coalesce(trimmed, '') FROM counts WHERE qid = $1;

-- name: last_position: the last entry of a queue's log that has a number
SELECT pos FROM counts WHERE qid = $1;
