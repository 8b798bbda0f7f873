-- Parts of statements that differ while somebody holds a snapshot (floors.py). `line` is a list of
-- ranges of the index of waiting jobs then: of one priority, or of several. Only with "=" for the
-- priority does a scan of the index end at the last place.

-- name: picked: the jobs that an exchange claims
SELECT head.* FROM wanted CROSS JOIN LATERAL (
    SELECT ctid AS at, due_ms FROM jobs_hot
    WHERE qid = wanted.qid AND state = 2 AND key IS NULL AND (at_ms IS NULL OR at_ms > $6)
    ORDER BY priority DESC, seq LIMIT $7 FOR UPDATE SKIP LOCKED
) AS head
LIMIT $7

-- name: picked_with_floors: the same, with floors
SELECT head.*
FROM unnest($19::integer[], $20::integer[], $21::integer[], $22::bigint[], $23::bigint[])
    AS line (qid, high, low, since, until)
CROSS JOIN LATERAL (
    SELECT * FROM (
        SELECT ctid AS at, due_ms FROM jobs_hot
        WHERE line.high = line.low AND qid = line.qid AND state = 2 AND key IS NULL
            AND priority = line.high AND seq >= line.since AND seq <= line.until
            AND (at_ms IS NULL OR at_ms > $6)
        ORDER BY seq LIMIT $7 FOR UPDATE SKIP LOCKED
    ) AS one
    UNION ALL
    SELECT * FROM (
        SELECT ctid AS at, due_ms FROM jobs_hot
        WHERE line.high > line.low AND qid = line.qid AND state = 2 AND key IS NULL
            AND priority <= line.high AND priority >= line.low
            AND seq >= line.since AND seq <= line.until AND (at_ms IS NULL OR at_ms > $6)
        ORDER BY priority DESC, seq LIMIT $7 FOR UPDATE SKIP LOCKED
    ) AS several
) AS head
LIMIT $7

-- name: more_waits: 1 if a job waits in the queue w
SELECT 1 FROM jobs_hot j WHERE j.qid = w.qid AND j.state = 2 AND j.key IS NULL
ORDER BY priority DESC, seq LIMIT 1

-- name: more_waits_with_floors: the same, with floors
SELECT 1
FROM unnest($16::integer[], $17::integer[], $18::integer[], $19::bigint[], $20::bigint[])
    AS line (qid, high, low, since, until)
CROSS JOIN LATERAL (
    (
        SELECT 1 FROM jobs_hot j
        WHERE line.high = line.low AND j.qid = w.qid AND state = 2 AND key IS NULL
            AND priority = line.high AND seq >= line.since AND seq <= line.until
        ORDER BY seq LIMIT 1
    )
    UNION ALL
    (
        SELECT 1 FROM jobs_hot j
        WHERE line.high > line.low AND j.qid = w.qid AND state = 2 AND key IS NULL
            AND priority <= line.high AND priority >= line.low
            AND seq >= line.since AND seq <= line.until
        ORDER BY priority DESC, seq LIMIT 1
    )
) AS head
WHERE line.qid = w.qid LIMIT 1

-- name: lock_of_job: the advisory lock of a job. Schemas share the advisory locks of their database.
hashtextextended(current_schema() || '/' || $1::bigint, 1785684593)

-- name: lock_of_queue: the advisory lock of a queue
hashtextextended(current_schema() || '/' || $1::text || '/' || $2::text, 1785684594)

-- name: latest: the latest time in the event log, whose last entries are only nearly in order
SELECT max(at_ms) FROM (SELECT at_ms FROM entries ORDER BY eid DESC LIMIT 100) AS last

-- name: time: milliseconds of the server's clock; with an injected one, the latest time in the log
CASE WHEN current_setting('jobq.clock', true) = 'injected' THEN ({latest})
ELSE floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint END
