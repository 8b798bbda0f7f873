-- The segments of the event log (the column `slot`): which are old, what of them is
-- still needed, and their end.

-- name: segments: for each segment: how many hours ago it was written, whether it has rows, entries
-- without numbers, and entries that readers may still read
SELECT slot,
    ((extract(epoch FROM clock_timestamp())::bigint / 3600 - slot) % 8)::integer AS age,
    EXISTS (SELECT 1 FROM entries e WHERE e.slot = s.slot),
    EXISTS (
        SELECT 1 FROM entries e, numbering
        WHERE e.slot = s.slot AND (
            e.xid >= pg_snapshot_xmax(snapshot)
            OR e.xid = ANY (ARRAY(SELECT pg_snapshot_xip(snapshot) FROM numbering))
        )
    ),
    EXISTS (
        SELECT 1 FROM counts c CROSS JOIN LATERAL (
            SELECT 1 FROM numbers n
            WHERE n.slot = s.slot AND n.qid = c.qid AND n.pos > c.dropped LIMIT 1
        ) needed
    )
FROM (SELECT generate_series(0, 7)::smallint AS slot) s;

-- name: move: move entries that are still needed from a segment to slot -1, at most so many
WITH needed AS MATERIALIZED (
    SELECT n.qid, n.pos, n.eid
    FROM counts c CROSS JOIN LATERAL (
        SELECT qid, pos, eid FROM numbers
        WHERE slot = $1 AND numbers.qid = c.qid AND pos > c.dropped LIMIT $2
    ) n
    LIMIT $2
),
moved AS (
    UPDATE entries e SET slot = -1 FROM needed WHERE e.slot = $1 AND e.eid = needed.eid
)
UPDATE numbers n SET slot = -1 FROM needed
WHERE n.slot = $1 AND n.qid = needed.qid AND n.pos = needed.pos;

-- name: drop_kept: delete entries of slot -1 that were dropped from their logs, at most so many
WITH old AS MATERIALIZED (
    SELECT n.qid, n.pos, n.eid
    FROM counts c CROSS JOIN LATERAL (
        SELECT qid, pos, eid FROM numbers
        WHERE slot = -1 AND numbers.qid = c.qid AND pos <= c.dropped LIMIT $1
    ) n
    LIMIT $1
),
deleted AS (DELETE FROM entries e USING old WHERE e.slot = -1 AND e.eid = old.eid)
DELETE FROM numbers n USING old WHERE n.slot = -1 AND n.qid = old.qid AND n.pos = old.pos;
