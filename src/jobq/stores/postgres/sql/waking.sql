-- What a call does after its commit: it wakes sleeping workers and notifies listeners.
-- The braces of queries.FROM_FLOORS are empty, or make an index scan begin at a floor (floors.py).

-- name: wake: wake workers and notify listeners, by one notification for each mailbox
-- $15 is a little before now. Delayed jobs that were due before are promoted by any claim, and
-- sleepers that have not looked for long are dead.
WITH work AS MATERIALIZED (
    SELECT w.qid, w.tenant, w.queue, w.deputies,
        -- The sleeper that knows when the next job is due may be busy then: one more must know.
        w.n + coalesce((
            SELECT 1 FROM jobs_hot j WHERE j.qid = w.qid AND j.state = 0 AND j.at_ms >= $15
            ORDER BY at_ms LIMIT 1
        ), 0) AS n
    FROM unnest(
        $1::integer[], $2::integer[], $3::bigint[], $4::text[], $5::text[], $6::boolean[],
        $7::boolean[]
    ) AS w (qid, n, due_ms, tenant, queue, deputies, more)
    WHERE 1 = (
        SELECT 1 FROM sleepers s WHERE s.qid = w.qid AND s.since_ms >= $15 - {sleep_ms}
        ORDER BY since_ms DESC LIMIT 1
    )
    -- A job that is delayed matters to a sleeper only if it is the next one due.
    AND (w.due_ms IS NULL OR w.due_ms <= (
        SELECT at_ms FROM jobs_hot j WHERE j.qid = w.qid AND j.state = 0 AND j.at_ms >= $15
        ORDER BY at_ms LIMIT 1
    ))
    -- Not EXISTS: for that the server may read all waiting jobs into a hash table.
    AND (NOT w.more OR 1 = ({more_waits}))
),
near AS MATERIALIZED (
    SELECT w.*, s.worker, s.mailbox, s.stays,
        sum(s.slots) OVER (PARTITION BY w.qid ORDER BY s.since_ms DESC, s.worker) - s.slots
            AS slots_before
    FROM work w CROSS JOIN LATERAL (
        SELECT worker, mailbox, slots, since_ms, stays FROM sleepers
        WHERE qid = w.qid AND since_ms >= $15 - {sleep_ms} AND left(mailbox, 1) <> '-'
        ORDER BY since_ms DESC LIMIT least(w.n, 64) + 2 FOR UPDATE SKIP LOCKED
    ) AS s
),
-- Whoever wakes workers never waits for another who does the same.
all_of_them AS MATERIALIZED (
    SELECT s.qid, s.worker FROM sleepers s
    WHERE s.worker = ANY (ARRAY(SELECT worker FROM near WHERE slots_before < n AND NOT stays))
    FOR UPDATE SKIP LOCKED
),
awake AS (
    DELETE FROM sleepers s USING all_of_them a WHERE (s.qid, s.worker) = (a.qid, a.worker)
),
deputies AS (
    SELECT *, row_number() OVER (PARTITION BY qid ORDER BY slots_before) AS place
    FROM near WHERE slots_before >= n AND near.deputies
),
topics AS MATERIALIZED (
    SELECT * FROM unnest($8::text[], $9::text[], $10::text[], $11::text[], $12::text[])
        AS t (topic, kind, tenant, queue, name)
),
heard AS (
    DELETE FROM listeners l USING topics t WHERE l.topic = t.topic AND t.kind = 'ended'
),
notices AS (
    SELECT mailbox, json_build_array('work', tenant, queue, worker, NULL)::text AS notice
    FROM near WHERE slots_before < n
    UNION ALL
    SELECT mailbox, json_build_array(
        'soon', tenant, queue, worker, CASE place WHEN 1 THEN $13::text ELSE $14::text END
    )::text
    FROM deputies WHERE place <= 2
    UNION ALL
    SELECT l.mailbox, json_build_array(t.kind, t.tenant, t.queue, t.name, NULL)::text
    FROM topics t JOIN listeners l USING (topic)
),
-- A notification has less than 8,000 bytes.
parts AS (
    SELECT mailbox, notice,
        sum(octet_length(notice) + 2) OVER (PARTITION BY mailbox ORDER BY notice) / 3500 AS part
    FROM notices WHERE octet_length(notice) < 4000
)
SELECT pg_notify(mailbox, '[' || string_agg(notice, ',') || ']') FROM parts GROUP BY mailbox, part;
