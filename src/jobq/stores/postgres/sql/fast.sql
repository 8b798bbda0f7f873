-- Calls on plain queues, each in one statement and one round trip (fast.py). A statement whose
-- assumptions do not hold divides by zero: it changes nothing, and the call goes the general way.
-- The braces of queries.FROM_FLOORS are empty, or make an index scan begin at a floor (floors.py).

-- name: plain_queues: queues whose jobs single statements may put, complete and claim
SELECT q.tenant, q.name, q.qid
FROM queues q JOIN unnest($1::text[], $2::text[]) AS wanted (tenant, name) USING (tenant, name)
WHERE q.plain AND q.held_ms <= $3;

-- name: put: insert new jobs, or none if an id exists or the queue is not plain any more
-- Given ids are looked up first: the insert would wait for a transaction that completes the job.
-- Without ON CONFLICT, which takes a fifth of the server's time of a large put: an id that somebody
-- else has just put is an error, and the call goes the general way.
WITH block AS (SELECT nextval('places') AS place),
made AS (
    INSERT INTO jobs_hot ({new_job})
    SELECT $1, new.id, new.state, new.priority, block.place + new.n, new.at_ms, NULL, new.flags,
        new.name, 0, $2, new.due_ms, new.codec, new.options, new.payload
    FROM block, unnest(
        $3::text[], $4::smallint[], $5::integer[], $6::bigint[], $7::integer[], $8::text[],
        $9::bigint[], $10::text[], $11::bytea[], $12::bytea[]
    ) WITH ORDINALITY AS new
        (id, state, priority, at_ms, flags, name, due_ms, codec, options, payload, n)
    WHERE new.flags & {given} = 0
        OR NOT EXISTS (SELECT 1 FROM jobs_hot h WHERE h.qid = $1 AND h.id = new.id OFFSET 0)
    RETURNING 1
),
heard AS (
    INSERT INTO listeners (topic, mailbox, until_ms)
    SELECT topic, $16, $17 FROM unnest($15::text[]) AS watched (topic)
    ON CONFLICT (topic, mailbox) DO UPDATE SET until_ms = excluded.until_ms
),
logged AS (
    INSERT INTO entries (qid, at_ms, n, items, moved, figures)
    SELECT $1, $2, cardinality($3::text[]), $13,
        ARRAY[cardinality($3::text[]) - $14, 0, $14, 0, 0, 0, 0],
        ARRAY[cardinality($3::text[]), 0, 0, 0, 0, 0, 0, 0, 0]::bigint[]
)
SELECT 1 / (
    (SELECT count(*) FROM made) = cardinality($3::text[])
    AND EXISTS (SELECT 1 FROM queues WHERE qid = $1 AND plain AND tenant = $18 AND name = $19)
)::int;

-- name: put_again: fails the put if one of its ids belongs to an ended job; returns the time
-- OFFSET 0 keeps the look-ups by id, as in hot.sql.
SELECT 1 / (
    NOT EXISTS (
        SELECT 1 FROM unnest($2::text[]) AS given (id)
        WHERE EXISTS (SELECT 1 FROM jobs_ended e WHERE e.qid = $1 AND e.id = given.id OFFSET 0)
    )
)::int, {time};

-- name: exchange: complete jobs and claim others, or change nothing
WITH wanted AS MATERIALIZED (
    SELECT * FROM unnest($1::integer[]{floors_18}) WITH ORDINALITY AS wanted (qid{floor}, ordinal)
),
-- The outcomes are arrays in the order of $3, and each row finds its own by a binary search. The
-- planner takes them for a few rows and would join them by a nested loop, which compares every job
-- with every outcome.
gone AS (
    DELETE FROM jobs_hot j
    -- A list that the planner does not see: for an empty one it would read any index to its end.
    WHERE j.pk = ANY (ARRAY(SELECT unnest($3::bigint[])))
        AND j.state = 3 AND j.flags & {not_plain} = 0
        AND j.token = ($4::text[])[width_bucket(j.pk, $3::bigint[])]
    RETURNING j.*, ($5::bytea[])[width_bucket(j.pk, $3::bigint[])] AS returned
),
ended AS (
    INSERT INTO jobs_ended ({job}) SELECT {ended_job} FROM gone g JOIN queues q USING (qid)
),
-- By its address: the row is locked, so that it cannot move. A row that another transaction has
-- changed since this statement began is not found there, and a later claim takes it.
picked AS MATERIALIZED ({picked}),
-- No job starts before the event that made it wait. The handle may not know yet that the server's
-- clock was set, and the call may be older than that event: its time was read before it was sent.
server_time AS MATERIALIZED (SELECT {time} AS ms),
began AS MATERIALIZED (
    SELECT greatest($6, max(due_ms), (SELECT ms FROM server_time)) AS ms FROM picked
),
claimed AS (
    UPDATE jobs_hot
    SET state = 3, attempt = attempt + 1, token = {new_token} || $8::text, worker = $9,
        started_ms = (SELECT ms FROM began), at_ms = (SELECT ms FROM began) + $10, keep = 0
    WHERE ctid = ANY (ARRAY(SELECT at FROM picked))
    RETURNING qid, {claimed}
),
-- Numbers, id and name of each job, between zero bytes, which no text has (event_log.started_items).
starts AS MATERIALIZED (
    SELECT qid, count(*)::int AS n, sum(ms - due_ms)::bigint AS waited, max(ms) AS at_ms,
        string_agg(
            textsend(concat_ws(' ', life, attempt, failures, created_ms, due_ms))
                || '\x00' || textsend(id) || '\x00' || textsend(name),
            '\x00' ORDER BY priority DESC, seq
        ) AS jobs
    FROM claimed, began GROUP BY qid
),
called AS (
    INSERT INTO calls (caller, call, at_ms)
    SELECT $11, $12, $6
    WHERE cardinality($3::bigint[]) > 0 OR EXISTS (SELECT 1 FROM picked)
    ON CONFLICT (caller, call) DO NOTHING RETURNING 1
),
-- One insert for both, because opening the partitions of the log takes longer than writing to them.
logged AS (
    INSERT INTO entries (qid, at_ms, worker, n, items, starts, moved, figures)
    SELECT e.qid, $6, $9, e.n, e.items, NULL, ARRAY[0, 0, 0, -e.n, e.n, 0, 0],
        ARRAY[0, 0, e.n, 0, 0, 0, 0, 0, e.run_ms]
    FROM unnest($13::integer[], $14::integer[], $15::bigint[], $16::bytea[])
        AS e (qid, n, run_ms, items)
    UNION ALL
    SELECT qid, at_ms, $9, n, NULL, jobs, ARRAY[0, 0, -n, n, 0, 0, 0],
        ARRAY[0, n, 0, 0, 0, 0, 0, waited, 0]
    FROM starts
),
-- A job that a transaction of its handler completes is locked and may outlive its lease.
stalled AS MATERIALIZED (
    SELECT head.pk FROM wanted CROSS JOIN LATERAL (
        SELECT pk FROM jobs_hot WHERE qid = wanted.qid AND state = 3 AND at_ms <= $6{since}
        ORDER BY at_ms LIMIT 1 FOR UPDATE SKIP LOCKED
    ) AS head
),
fits AS MATERIALIZED (
    SELECT 1 / (
        -- Always true: it makes the executor pick first. A row that another exchange claims between
        -- this statement's snapshot and its pick is locked here for nothing, and its completion
        -- waits for this commit. This took a drain at concurrency 100 from 63 to 54 µs per job.
        (SELECT count(*) FROM picked) >= 0
        AND (SELECT count(*) FROM gone) = cardinality($3::bigint[])
        AND ($17 OR EXISTS (SELECT 1 FROM called) OR (
            cardinality($3::bigint[]) = 0 AND NOT EXISTS (SELECT 1 FROM picked)
            AND NOT EXISTS (SELECT 1 FROM calls WHERE caller = $11 AND call = $12)
        ))
        AND NOT EXISTS (
            SELECT 1 FROM unnest($1::integer[] || $2::integer[]) AS named (qid)
            LEFT JOIN queues q USING (qid) WHERE q.plain IS NOT TRUE
        )
        AND NOT EXISTS (
            SELECT 1 FROM wanted CROSS JOIN LATERAL (
                SELECT 1 FROM jobs_hot WHERE qid = wanted.qid AND state = 0 AND at_ms <= $6{since}
                UNION ALL
                SELECT 1 FROM jobs_hot WHERE qid = wanted.qid AND state = 2 AND at_ms <= $6{since}
                UNION ALL
                SELECT 1 FROM jobs_hot WHERE qid = wanted.qid AND state = 1 AND at_ms <= $6{since}
            ) AS due
        )
        AND NOT EXISTS (SELECT 1 FROM stalled)
        AND NOT EXISTS (SELECT 1 FROM claimed WHERE flags & {not_leasable} <> 0 OR stalls > 0)
    )::int AS fits,
    (SELECT array_agg(pk) FROM gone WHERE flags & {watched} <> 0) AS watched
)
SELECT {claimed_c}, c.qid, (SELECT ms FROM server_time), (SELECT ms FROM began), fits.watched
FROM fits LEFT JOIN claimed c ON fits = 1;

-- name: next_times: when the next delayed, active or blocked job of these queues is due
SELECT min(at_ms) FROM unnest($1::integer[]) AS wanted (qid) CROSS JOIN LATERAL (
    (SELECT at_ms FROM jobs_hot WHERE qid = wanted.qid AND state = 0 AND at_ms > $2
     ORDER BY at_ms LIMIT 1)
    UNION ALL
    (SELECT at_ms FROM jobs_hot WHERE qid = wanted.qid AND state = 3 AND at_ms > $2{no_leases}
     ORDER BY at_ms LIMIT 1)
    UNION ALL
    (SELECT at_ms FROM jobs_hot
     WHERE qid = wanted.qid AND state = 1 AND at_ms > $2 AND at_ms < 9007199254740992
     ORDER BY at_ms LIMIT 1)
) AS times;

-- name: fall_asleep: register a worker that found nothing in these queues
INSERT INTO sleepers (qid, worker, mailbox, slots, since_ms, stays)
SELECT qid, $2, $3, $4, $5, $6 FROM unnest($1::integer[]) AS queues (qid)
ON CONFLICT (qid, worker) DO UPDATE
SET mailbox = excluded.mailbox, slots = excluded.slots, since_ms = excluded.since_ms,
    stays = excluded.stays;

-- name: wake_up: delete the registrations of a worker that is awake
DELETE FROM sleepers WHERE worker = $1;
