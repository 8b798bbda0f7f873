-- Snapshots that other transactions hold open (snapshots.py), and statements of the general path that
-- begin at a floor instead of reading past the dead entries of an index (floors.py).

-- name: snapshots: the number of the next transaction, and how many transactions have begun since
-- the oldest snapshot that keeps dead rows was taken. Vacuum's own does not. A transaction that has
-- written keeps them also while it has no snapshot, as between two statements at READ COMMITTED.
SELECT pg_snapshot_xmax(pg_current_snapshot())::text::bigint, greatest(
    (
        SELECT greatest(max(age(backend_xmin)), max(age(backend_xid))) FROM pg_stat_activity
        WHERE pid <> pg_backend_pid() AND backend_type IS DISTINCT FROM 'autovacuum worker'
    ),
    (SELECT max(age(transaction)) FROM pg_prepared_xacts),
    (SELECT max(age(xmin)) FROM pg_replication_slots)
)::bigint;

-- name: heads: the first jobs that wait in plain queues, from the very beginning: of each queue and
-- priority, the first blocks of places that have any
WITH RECURSIVE heads AS (
    SELECT q.qid, head.priority, head.seq, 1 AS n
    FROM queues q CROSS JOIN LATERAL (
        SELECT priority, seq FROM jobs_hot j
        WHERE j.qid = q.qid AND state = 2 AND key IS NULL ORDER BY priority DESC, seq LIMIT 1
    ) AS head
    WHERE q.mode = 'plain'
    UNION ALL
    SELECT h.qid, next.priority, next.seq, CASE WHEN next.priority = h.priority THEN h.n + 1 ELSE 1 END
    FROM heads h CROSS JOIN LATERAL (
        (
            SELECT priority, seq FROM jobs_hot j
            WHERE j.qid = h.qid AND state = 2 AND key IS NULL AND priority = h.priority
                AND seq >= ((h.seq >> 20) + 1) << 20 AND h.n < $1
            ORDER BY seq LIMIT 1
        )
        UNION ALL
        (
            SELECT priority, seq FROM jobs_hot j
            WHERE j.qid = h.qid AND state = 2 AND key IS NULL AND priority < h.priority
            ORDER BY priority DESC, seq LIMIT 1
        )
        LIMIT 1
    ) AS next
)
SELECT qid, priority, seq >> 20 FROM heads LIMIT $2;

-- name: publish: tell all handles that somebody holds a snapshot, and where the first jobs wait
INSERT INTO looks (blocks) VALUES ($1::jsonb) ON CONFLICT DO NOTHING;

-- name: newest: what was published in the last seconds
-- After the server's clock was set back, older rows seem to come from the future.
SELECT blocks FROM looks
WHERE made > clock_timestamp() - make_interval(secs => $1) AND made <= clock_timestamp()
ORDER BY made DESC LIMIT 1;

-- name: sweep: delete what was published
DELETE FROM looks;

-- name: last_seq: the last block of places that was taken
SELECT pg_sequence_last_value('places');

-- name: front: the place of the first job that waits in a priority of a queue
SELECT seq FROM jobs_hot
WHERE qid = $1 AND state = 2 AND key IS NULL AND priority = $2 AND seq >= $3 ORDER BY seq LIMIT 1;

-- name: oldest_ended: when the record expires that is the first to do so, of the jobs of a queue that
-- ended in one way
SELECT at_ms FROM jobs_ended WHERE qid = $1 AND state = $2 AND keep = 0 AND at_ms >= $3
ORDER BY at_ms LIMIT 1;

-- name: claim_plain: as in hot.sql
UPDATE jobs_hot
SET state = 3, attempt = attempt + 1, token = {new_token} || $1::text, worker = $2,
    started_ms = $3, at_ms = $4, keep = 0
WHERE pk = ANY (ARRAY(
    SELECT head.pk
    FROM unnest($7::integer[], $8::integer[], $9::integer[], $10::bigint[], $11::bigint[])
        AS line (qid, high, low, since, until)
    CROSS JOIN LATERAL (
        SELECT * FROM (
            SELECT pk FROM jobs_hot
            WHERE line.high = line.low AND qid = line.qid AND state = 2 AND key IS NULL
                AND priority = line.high AND seq >= line.since AND seq <= line.until
                AND (at_ms IS NULL OR at_ms > $3)
            ORDER BY seq LIMIT $6 FOR NO KEY UPDATE SKIP LOCKED
        ) AS one
        UNION ALL
        SELECT * FROM (
            SELECT pk FROM jobs_hot
            WHERE line.high > line.low AND qid = line.qid AND state = 2 AND key IS NULL
                AND priority <= line.high AND priority >= line.low
                AND seq >= line.since AND seq <= line.until AND (at_ms IS NULL OR at_ms > $3)
            ORDER BY priority DESC, seq LIMIT $6 FOR NO KEY UPDATE SKIP LOCKED
        ) AS several
    ) AS head
    WHERE line.qid = $5 LIMIT $6
))
RETURNING {claimed};
