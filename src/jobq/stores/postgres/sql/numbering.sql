-- Gives positions and numbers to entries of the event log after their commit, and adds what they
-- changed to the counters and metrics (see numbering.py).

-- name: lock: let nobody else number until the transaction ends
SELECT 1 FROM numbering FOR NO KEY UPDATE;

-- name: restored: whether the tables came here from a server that had counted more transactions
SELECT pg_snapshot_xmax(pg_current_snapshot()) < pg_snapshot_xmax(snapshot)
    OR pg_snapshot_xmax(pg_current_snapshot()) < pg_snapshot_xmax(target)
FROM numbering;

-- name: adopt: give the entries of restored tables transactions of this server: those without
-- numbers this one, so that the next pass numbers them, and the others one that all snapshots see.
-- Entries without events have no numbers; the snapshot of the other server tells which are counted.
WITH fresh AS MATERIALIZED (
    SELECT e.slot, e.eid FROM entries e, numbering
    WHERE CASE WHEN e.n > 0
        THEN NOT EXISTS (SELECT 1 FROM numbers n WHERE n.slot = e.slot AND n.eid = e.eid)
        ELSE NOT pg_visible_in_snapshot(e.xid, snapshot) END
)
UPDATE entries e
SET xid = CASE WHEN EXISTS (SELECT 1 FROM fresh f WHERE (f.slot, f.eid) = (e.slot, e.eid))
    THEN pg_current_xact_id() ELSE '3'::xid8 END;

-- name: continue_here: the next pass numbers what is committed from now on
UPDATE numbering SET snapshot = pg_current_snapshot(), target = NULL, upto = 0;

-- name: number: number the entries that were committed since the last pass, at most so many.
-- Returns how many, and whether more are left. Runs in the statement after `lock`: its snapshot
-- must see what the pass before has written.
-- A pass finds new entries by their transactions. If there are too many, it numbers none and sets
-- a target; the next passes number what the target sees in the order of `eid`.
WITH state AS MATERIALIZED (
    SELECT snapshot, target, upto, pg_current_snapshot() AS now FROM numbering
),
found AS MATERIALIZED (
    (
        SELECT {entry} FROM entries
        WHERE xid >= (SELECT pg_snapshot_xmax(snapshot) FROM state WHERE target IS NULL)
            AND pg_visible_in_snapshot(xid, pg_current_snapshot())
        LIMIT $1 + 1
    )
    UNION ALL
    (
        SELECT {entry} FROM entries
        WHERE xid = ANY (ARRAY(SELECT pg_snapshot_xip(snapshot) FROM state WHERE target IS NULL))
            AND pg_visible_in_snapshot(xid, pg_current_snapshot())
        LIMIT $1 + 1
    )
),
continued AS MATERIALIZED (
    SELECT {entry} FROM entries
    WHERE eid > (SELECT upto FROM state WHERE target IS NOT NULL)
        AND NOT pg_visible_in_snapshot(xid, (SELECT snapshot FROM state))
        AND pg_visible_in_snapshot(xid, (SELECT target FROM state))
    ORDER BY eid LIMIT $1
),
fresh AS MATERIALIZED (
    SELECT * FROM found WHERE (SELECT count(*) FROM found) <= $1
    UNION ALL
    SELECT * FROM continued
),
numbered AS (
    INSERT INTO numbers (qid, slot, n, pos, number, eid, incarnation)
    SELECT f.qid, f.slot, f.n, c.pos + row_number() OVER of_queue,
        c.logged + sum(f.n) OVER of_queue - f.n + 1, f.eid,
        (
            SELECT left(encode(sha256(convert_to(concat(
                extract(epoch FROM pg_postmaster_start_time()), pg_relation_filenode('numbering')
            ), 'UTF8')), 'hex'), 8)
        )
    FROM fresh f JOIN counts c USING (qid)
    WHERE f.n > 0
    WINDOW of_queue AS (PARTITION BY f.qid ORDER BY f.eid)
),
counted AS (
    UPDATE counts c
    SET pos = c.pos + f.entries, logged = c.logged + f.events,
        n_delayed = n_delayed + f.delayed, n_blocked = n_blocked + f.blocked,
        n_waiting = n_waiting + f.waiting, n_active = n_active + f.active,
        n_completed = n_completed + f.completed, n_failed = n_failed + f.failed,
        n_cancelled = n_cancelled + f.cancelled
    FROM (
        SELECT qid, count(*) FILTER (WHERE n > 0) AS entries, sum(n) AS events,
            coalesce(sum(moved[1]), 0) AS delayed, coalesce(sum(moved[2]), 0) AS blocked,
            coalesce(sum(moved[3]), 0) AS waiting, coalesce(sum(moved[4]), 0) AS active,
            coalesce(sum(moved[5]), 0) AS completed, coalesce(sum(moved[6]), 0) AS failed,
            coalesce(sum(moved[7]), 0) AS cancelled
        FROM fresh GROUP BY qid
    ) f
    WHERE c.qid = f.qid
),
measured AS (
    INSERT INTO minutes AS m (qid, minute, {figures})
    SELECT qid, at_ms / 60000 * 60000, sum(figures[1]), sum(figures[2]), sum(figures[3]),
        sum(figures[4]), sum(figures[5]), sum(figures[6]), sum(figures[7]), sum(figures[8]),
        sum(figures[9])
    FROM fresh WHERE figures IS NOT NULL GROUP BY 1, 2
    ON CONFLICT (qid, minute) DO UPDATE
    SET accepted = m.accepted + excluded.accepted, started = m.started + excluded.started,
        completed = m.completed + excluded.completed, failed = m.failed + excluded.failed,
        cancelled = m.cancelled + excluded.cancelled, retried = m.retried + excluded.retried,
        stalled = m.stalled + excluded.stalled, wait_ms = m.wait_ms + excluded.wait_ms,
        run_ms = m.run_ms + excluded.run_ms
),
pass AS (
    SELECT (SELECT count(*) FROM found) AS found, (SELECT count(*) FROM continued) AS continued,
        (SELECT max(eid) FROM continued) AS last
),
advanced AS (
    UPDATE numbering n
    SET snapshot = CASE
            WHEN s.target IS NULL AND pass.found <= $1 THEN s.now
            WHEN s.target IS NOT NULL AND pass.continued < $1 THEN s.target
            ELSE s.snapshot END,
        target = CASE
            WHEN s.target IS NULL AND pass.found > $1 THEN s.now
            WHEN s.target IS NOT NULL AND pass.continued = $1 THEN s.target END,
        upto = CASE
            WHEN s.target IS NULL AND pass.found > $1 THEN (
                SELECT min(eid) - 1 FROM entries WHERE NOT pg_visible_in_snapshot(xid, s.snapshot)
            )
            WHEN s.target IS NOT NULL AND pass.continued = $1 THEN pass.last
            ELSE 0 END
    FROM state s, pass
    WHERE pass.found > 0 OR s.target IS NOT NULL
        -- Without new entries, the row is written only now and then.
        OR pg_snapshot_xmax(s.now)::text::bigint
            > pg_snapshot_xmax(s.snapshot)::text::bigint + 1000
)
SELECT (SELECT count(*) FROM fresh), pass.found > $1 OR state.target IS NOT NULL FROM pass, state;

-- name: counts: the counters of a queue, with those entries that have no numbers yet
WITH state AS MATERIALIZED (SELECT snapshot, target, upto FROM numbering),
fresh AS (
    SELECT e.moved FROM entries e, state
    WHERE e.xid >= (SELECT pg_snapshot_xmax(snapshot) FROM state)
        AND e.qid = $1 AND e.moved IS NOT NULL
        AND NOT (
            state.target IS NOT NULL AND e.eid <= state.upto
            AND pg_visible_in_snapshot(e.xid, state.target)
        )
    UNION ALL
    SELECT e.moved FROM entries e, state
    WHERE e.xid = ANY (ARRAY(SELECT pg_snapshot_xip(snapshot) FROM state))
        AND e.qid = $1 AND e.moved IS NOT NULL
        AND NOT (
            state.target IS NOT NULL AND e.eid <= state.upto
            AND pg_visible_in_snapshot(e.xid, state.target)
        )
),
added AS (
    SELECT count(*) AS n, sum(moved[1]) AS delayed, sum(moved[2]) AS blocked,
        sum(moved[3]) AS waiting, sum(moved[4]) AS active, sum(moved[5]) AS completed,
        sum(moved[6]) AS failed, sum(moved[7]) AS cancelled
    FROM fresh
)
SELECT c.n_delayed + coalesce(f.delayed, 0), c.n_blocked + coalesce(f.blocked, 0),
    c.n_waiting + coalesce(f.waiting, 0), c.n_active + coalesce(f.active, 0),
    c.n_completed + coalesce(f.completed, 0), c.n_failed + coalesce(f.failed, 0),
    c.n_cancelled + coalesce(f.cancelled, 0), f.n
FROM counts c, added f WHERE c.qid = $1;

-- name: minutes: metrics of a queue since a minute, with those entries that have no numbers yet
WITH state AS MATERIALIZED (SELECT snapshot, target, upto FROM numbering),
fresh AS (
    SELECT e.at_ms / 60000 * 60000 AS minute, e.figures FROM entries e, state
    WHERE e.xid >= (SELECT pg_snapshot_xmax(snapshot) FROM state)
        AND e.qid = $1 AND e.figures IS NOT NULL AND e.at_ms >= $2
        AND NOT (
            state.target IS NOT NULL AND e.eid <= state.upto
            AND pg_visible_in_snapshot(e.xid, state.target)
        )
    UNION ALL
    SELECT e.at_ms / 60000 * 60000 AS minute, e.figures FROM entries e, state
    WHERE e.xid = ANY (ARRAY(SELECT pg_snapshot_xip(snapshot) FROM state))
        AND e.qid = $1 AND e.figures IS NOT NULL AND e.at_ms >= $2
        AND NOT (
            state.target IS NOT NULL AND e.eid <= state.upto
            AND pg_visible_in_snapshot(e.xid, state.target)
        )
),
every AS (
    SELECT minute, {figures} FROM minutes WHERE qid = $1 AND minute >= $2
    UNION ALL
    SELECT minute, figures[1], figures[2], figures[3], figures[4], figures[5], figures[6],
        figures[7], figures[8], figures[9]
    FROM fresh
)
SELECT minute, sum(accepted)::bigint, sum(started)::bigint, sum(completed)::bigint,
    sum(failed)::bigint, sum(cancelled)::bigint, sum(retried)::bigint, sum(stalled)::bigint,
    sum(wait_ms)::bigint, sum(run_ms)::bigint
FROM every GROUP BY minute ORDER BY minute;
