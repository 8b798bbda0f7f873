-- Statements of the hot paths: put, claim and settle. Braces name column lists (queries.py).
-- Waiting and active jobs are in jobs_hot, ended ones in jobs_ended.
-- The braces of queries.FROM_FLOORS are empty, or make an index scan begin at a floor (floors.py).

-- name: queue: a queue by name
SELECT {queue} FROM queues WHERE tenant = $1 AND name = $2;

-- name: lock_queue: the same, locked until the transaction ends
SELECT {queue} FROM queues WHERE tenant = $1 AND name = $2 FOR NO KEY UPDATE;

-- name: lock_queues: several queues, locked in the order of their numbers
SELECT {queue} FROM queues
WHERE (tenant, name) IN (SELECT * FROM unnest($1::text[], $2::text[]))
ORDER BY qid FOR NO KEY UPDATE;

-- name: make_queue: create a queue and its counters, unless the queue exists
WITH made AS (
    INSERT INTO queues (tenant, name) VALUES ($1, $2)
    ON CONFLICT (tenant, name) DO NOTHING RETURNING qid
)
INSERT INTO counts (qid) SELECT qid FROM made;

-- name: save_queue: write the row of a queue
UPDATE queues
SET mode = $1, paused = $2, listed = $3, held_ms = $4, rate = $5, settings = $6, reserved = $7,
    plain = $8, kept_ms = $9
WHERE qid = $10;

-- name: seqs: a block of places at the back of all queues, and the time
SELECT nextval('places'), {time};

-- name: time: the time, after a wait for a lock
SELECT {time};

-- name: next_wait: when the next wait of a blocked job times out
SELECT at_ms FROM jobs_hot WHERE qid = $1 AND state = 1 AND at_ms < 9007199254740992{since_2}
ORDER BY at_ms LIMIT 1;

-- An insert waits for a transaction that has changed or inserted a row with the same id. So rows that
-- exist are left out before: their handlers may be completing them in transactions of their own.

-- name: insert_job: insert a new job, unless its id exists
INSERT INTO jobs_hot ({new_job})
SELECT {new_job_values}
WHERE NOT EXISTS (SELECT 1 FROM jobs WHERE qid = $1 AND id = $2::text)
ON CONFLICT (qid, id) DO NOTHING;

-- name: insert_jobs: the same for many jobs of one queue, given as one array per column
-- OFFSET 0 keeps the look-ups by id. A join was planned while the table was empty, and read it whole.
INSERT INTO jobs_hot ({new_job})
SELECT {new_job} FROM unnest({new_job_arrays}) AS new ({new_job})
WHERE NOT EXISTS (SELECT 1 FROM jobs WHERE (qid, id) = (new.qid, new.id) OFFSET 0)
ON CONFLICT (qid, id) DO NOTHING;

-- name: ended_meanwhile: whether jobs with these ids have ended since the insert looked for them
-- The inner LIMIT keeps the look-ups by id: for "id = ANY", a table without statistics was read whole.
SELECT 1 FROM unnest($2::text[]) AS given (id)
CROSS JOIN LATERAL (
    SELECT 1 FROM jobs_ended e WHERE e.qid = $1 AND e.id = given.id
        AND EXISTS (SELECT 1 FROM jobs_hot h WHERE h.qid = $1 AND h.id = given.id) LIMIT 1
) AS both_tables LIMIT 1;

-- name: try_ids: fails if jobs with these ids have ended after the snapshot of the transaction
-- A SELECT does not see them, but the unique index does. The caller rolls the insert back.
INSERT INTO jobs_ended ({new_job}) SELECT {new_job} FROM unnest({new_job_arrays}) AS new ({new_job})
ON CONFLICT (qid, id) DO NOTHING;

-- name: taken: the ids of a list that existed before: their jobs have none of the new places
SELECT found.id FROM unnest($2::text[]) AS given (id)
CROSS JOIN LATERAL (
    SELECT id FROM jobs WHERE qid = $1 AND id = given.id AND abs(seq) NOT BETWEEN $3 AND $4 LIMIT 1
) AS found;

-- A claim skips jobs that another transaction has locked. Callers of claims that come back with
-- fewer jobs than there are waiting look again.

-- name: claim_plain: claim the jobs at the head of a queue; returned in no order
UPDATE jobs_hot
SET state = 3, attempt = attempt + 1, token = {new_token} || $1::text, worker = $2,
    started_ms = $3, at_ms = $4, keep = 0
WHERE pk = ANY (ARRAY(
    SELECT pk FROM jobs_hot
    WHERE qid = $5 AND state = 2 AND key IS NULL AND (at_ms IS NULL OR at_ms > $3)
    ORDER BY priority DESC, seq LIMIT $6 FOR NO KEY UPDATE SKIP LOCKED
))
RETURNING {claimed};

-- name: head_of_queue: the jobs that claim_plain would claim, in order
SELECT {claiming} FROM jobs_hot
WHERE qid = $1 AND state = 2 AND key IS NULL AND (at_ms IS NULL OR at_ms > $2)
ORDER BY priority DESC, seq LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED;

-- name: head_facts: what decides whether the jobs at the head of a plain queue may start
SELECT {head} FROM jobs_hot
WHERE qid = $1 AND state = 2 AND key IS NULL AND (at_ms IS NULL OR at_ms > $2)
ORDER BY priority DESC, seq LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED;

-- name: claim_one: claim one job
UPDATE jobs_hot
SET state = 3, attempt = attempt + 1, token = $1, worker = $2, started_ms = $3, at_ms = $4,
    keep = 0
WHERE pk = $5;

-- name: claim_these: claim the jobs of a list
UPDATE jobs_hot
SET state = 3, attempt = attempt + 1, token = {new_token} || $1::text, worker = $2,
    started_ms = $3, at_ms = $4, keep = 0
WHERE pk = ANY ($5::bigint[]) AND state = 2
RETURNING {claimed};

-- name: claimed_by_call: the jobs that a call has claimed, for when it is repeated
SELECT {claimed}, token, started_ms, at_ms
FROM jobs_hot WHERE qid = $1 AND state = 3 AND at_ms IS NOT NULL
    AND token = {token} || $2::text;

-- name: complete: complete a job whose end changes only its own row (no flag of rows.ENDING)
UPDATE jobs SET state = 4, result = $1, finished_ms = $2, at_ms = $3, keep = flags & 1
WHERE pk = $4 AND token = $5 AND id = $6 AND state = 3 AND flags & 126 = 0;

-- name: complete_all: the same for many jobs, given as one array per parameter: for all or none
WITH done AS MATERIALIZED (
    SELECT *
    FROM unnest($1::bytea[], $2::bigint[], $3::bigint[], $4::bigint[], $5::text[], $6::text[])
        AS done (result, now, until, pk, token, id)
),
held AS MATERIALIZED (
    SELECT j.pk FROM jobs_hot j JOIN done USING (pk)
    -- The list keeps the look-ups by number, as in fast.sql.
    WHERE j.pk = ANY ($4::bigint[]) AND j.token = done.token AND j.id = done.id AND j.state = 3
        AND j.flags & 126 = 0
    ORDER BY j.pk FOR NO KEY UPDATE OF j
)
UPDATE jobs j
SET state = 4, result = done.result, finished_ms = done.now, at_ms = done.until, keep = flags & 1
FROM done
WHERE j.pk = ANY ($4::bigint[]) AND j.pk = done.pk AND j.state = 3
    AND (SELECT count(*) FROM held) = $7;

-- name: load_job: a job by number
SELECT {job} FROM jobs WHERE pk = $1;

-- name: lock_job: the same, locked until the transaction ends
SELECT {job} FROM jobs WHERE pk = $1 FOR NO KEY UPDATE;

-- name: load_jobs: jobs by number, in the order of the queue
SELECT {job} FROM jobs WHERE pk = ANY ($1::bigint[]) ORDER BY priority DESC, seq;

-- name: lock_numbers: lock jobs by number, in the order of their numbers
SELECT pk FROM jobs WHERE pk = ANY ($1::bigint[]) ORDER BY pk FOR NO KEY UPDATE;

-- name: find_job: a job by id
SELECT {job} FROM jobs WHERE qid = $1 AND id = $2;

-- name: lock_found: the same, locked until the transaction ends
SELECT {job} FROM jobs WHERE qid = $1 AND id = $2 FOR NO KEY UPDATE;

-- name: save_job: write the row of a job
UPDATE jobs SET {job_assigned} WHERE pk = {job_number};

-- name: anything_due: whether the time of a delayed, active, waiting or blocked job has come
SELECT EXISTS (SELECT 1 FROM jobs_hot WHERE qid = $1 AND state = 0 AND at_ms <= $2{since_3}),
       EXISTS (SELECT 1 FROM jobs_hot WHERE qid = $1 AND state = 3 AND at_ms <= $2{since_3}),
       EXISTS (SELECT 1 FROM jobs_hot WHERE qid = $1 AND state = 2 AND at_ms <= $2{since_3}),
       EXISTS (SELECT 1 FROM jobs_hot WHERE qid = $1 AND state = 1 AND at_ms <= $2{since_3});

-- A job that a transaction of its handler completes is locked until that one ends. Upkeep skips it.

-- name: due: delayed jobs whose time has come, in order
SELECT {job} FROM jobs_hot WHERE qid = $1 AND state = 0 AND at_ms <= $2{since_4}
ORDER BY at_ms, pk LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED;

-- name: stalled: active jobs whose lease has expired
SELECT {job} FROM jobs_hot WHERE qid = $1 AND state = 3 AND at_ms <= $2{since_4}
ORDER BY at_ms, pk LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED;

-- name: expired: waiting jobs whose ttl is over
SELECT {job} FROM jobs_hot WHERE qid = $1 AND state = 2 AND at_ms <= $2{since_4}
ORDER BY at_ms, pk LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED;

-- name: overdue: blocked jobs whose wait has timed out
SELECT {job} FROM jobs_hot WHERE qid = $1 AND state = 1 AND at_ms <= $2{since_4}
ORDER BY at_ms, pk LIMIT $3 FOR NO KEY UPDATE SKIP LOCKED;

-- name: next_due: when the next delayed job is due
SELECT at_ms FROM jobs_hot WHERE qid = $1 AND state = 0 AND at_ms IS NOT NULL{since_2}
ORDER BY at_ms LIMIT 1;

-- name: next_expiry: when the next lease expires
SELECT at_ms FROM jobs_hot WHERE qid = $1 AND state = 3 AND at_ms IS NOT NULL{since_2}{no_leases}
ORDER BY at_ms LIMIT 1;

-- name: log: append an entry to the event log
INSERT INTO entries (qid, at_ms, worker, n, items, moved, figures)
VALUES ($1, $2, $3, $4, $5, $6::integer[], $7::bigint[]);

-- name: last_call: an exchange that this worker has made before
SELECT call, stale FROM calls WHERE caller = $1 AND call = $2;

-- name: remember_call: remember an exchange, in case its reply is lost; fails if it is known
INSERT INTO calls (caller, call, at_ms, stale) VALUES ($1, $2, $3, $4);

-- name: extend: renew a lease; a job that its handler is completing is held without that
WITH free AS (
    SELECT pk FROM jobs_hot WHERE pk = $3 AND id = $4 AND state = 3 AND token = $5
        AND qid = (SELECT qid FROM queues WHERE tenant = $6 AND name = $7)
    FOR NO KEY UPDATE SKIP LOCKED
),
renewed AS (
    UPDATE jobs_hot SET at_ms = greatest($1, {time}) + $2
    WHERE pk = $3 AND EXISTS (SELECT 1 FROM free)
)
SELECT flags FROM jobs_hot WHERE pk = $3 AND id = $4 AND state = 3 AND token = $5
    AND qid = (SELECT qid FROM queues WHERE tenant = $6 AND name = $7);

-- name: state_of_lease: the state of a job, if its last lease is this one
SELECT state FROM jobs WHERE pk = $1 AND id = $2 AND token = $3;

-- name: free_found: a job by id, locked; skipped if another transaction has locked it
SELECT {job} FROM jobs WHERE qid = $1 AND id = $2 FOR NO KEY UPDATE SKIP LOCKED;

-- name: free_job: the same by number
SELECT {job} FROM jobs WHERE pk = $1 FOR NO KEY UPDATE SKIP LOCKED;

-- name: begin_completing: a transaction of its handler begins to complete the job of this number
SELECT pg_advisory_xact_lock({lock_of_job});

-- name: use_queue: a caller's transaction uses a queue, which cannot be removed until it ends
SELECT pg_advisory_xact_lock_shared({lock_of_queue});

-- name: not_used: whether no caller's transaction uses a queue
SELECT pg_try_advisory_xact_lock({lock_of_queue});

-- name: not_completing: whether no transaction of a handler is completing the job of this number
SELECT pg_try_advisory_xact_lock_shared({lock_of_job});

-- name: unlocked: a job that no transaction has locked
SELECT pk FROM jobs_hot WHERE pk = $1 FOR NO KEY UPDATE SKIP LOCKED;

-- name: any_waiting: whether any job of a queue waits, with a key or without
SELECT 1 WHERE EXISTS (SELECT 1 FROM jobs_hot WHERE qid = $1 AND state = 2 AND key IS NULL)
    OR EXISTS (SELECT 1 FROM jobs_hot WHERE qid = $1 AND state = 2 AND key IS NOT NULL);
