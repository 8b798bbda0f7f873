-- What belongs to a job: unique locks, edges of flows, signals, log lines, failed runs, steps.

-- name: lock: the holder of a unique lock
SELECT {lock} FROM locks WHERE qid = $1 AND lock = $2;

-- name: take_lock: give a lock to a job if nobody holds it, or the job of the last number does
-- Divides by zero if another job has got the lock since it was read, for example by the commit of a
-- caller's transaction that this statement has waited for. The call is repeated then.
WITH taken AS (
    INSERT INTO locks (qid, lock, {lock}) VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (qid, lock) DO UPDATE
    SET pk = excluded.pk, until_ms = excluded.until_ms, id = excluded.id WHERE locks.pk = $6
    RETURNING 1
)
SELECT 1 / count(*) FROM taken;

-- name: drop_lock: delete a lock, if the job still holds it
-- A caller's open transaction that takes the lock over has locked the row. It is skipped, so that
-- the worker does not wait for that transaction. If that one rolls back, the row is left: only
-- locks with a time can be taken over from a job that has not ended, so it becomes free.
DELETE FROM locks WHERE (qid, lock) IN (
    SELECT qid, lock FROM locks WHERE qid = $1 AND lock = $2 AND pk = $3 FOR UPDATE SKIP LOCKED
);

-- name: sweep_locks: delete locks whose time is over
DELETE FROM locks
WHERE (qid, lock) IN (
    SELECT qid, lock FROM locks WHERE until_ms <= $1 LIMIT $2 FOR UPDATE SKIP LOCKED
);

-- name: add_edge: a parent waits for a child
INSERT INTO edges (parent, {edge}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10);

-- name: edges_of: the jobs that a parent waits or waited for
SELECT {edge} FROM edges WHERE parent = $1 ORDER BY ordinal;

-- name: edge_names: the same by the ids under which the parent knows them
SELECT child_qid, coalesce(asked, child) FROM edges WHERE parent = $1;

-- name: any_open: whether a parent still waits for a child
SELECT 1 FROM edges WHERE parent = $1 AND done = 0 LIMIT 1;

-- name: parent: what the end of a child needs of its parent; not the payload. Children that end at
-- the same time wait for each other here, so that the last one sees the ends of all others.
SELECT state, follows, options FROM jobs WHERE pk = $1 FOR NO KEY UPDATE;

-- name: waiting_parents: parents that wait for a child
SELECT parent, ordinal, data FROM edges WHERE child_qid = $1 AND child = $2 AND done = 0
ORDER BY parent LIMIT $3;

-- name: parents_of: parents that wait or waited for a child
SELECT DISTINCT q.tenant, q.name, j.id
FROM edges e JOIN jobs j ON j.pk = e.parent JOIN queues q ON q.qid = j.qid
WHERE e.child_qid = $1 AND e.child = $2 LIMIT 1000;

-- name: children_of: children that a parent waits or waited for
SELECT q.tenant, q.name, e.child FROM edges e JOIN queues q ON q.qid = e.child_qid
WHERE e.parent = $1 AND e.ordinal >= 0
GROUP BY q.tenant, q.name, e.child ORDER BY min(e.ordinal) LIMIT 20000;

-- name: end_edge: store the end of a child
UPDATE edges SET done = $1, result = $2, codec = $3, failure = $4
WHERE parent = $5 AND ordinal = $6;

-- name: reopen_edge: a parent waits again for a child that is run again
UPDATE edges SET done = 0, result = NULL, failure = NULL WHERE parent = $1 AND ordinal = $2;

-- name: awaited: which of these ids are waited for. "done = 0" would allow the index of all open
-- edges, which a table without statistics was read by: 300 ms for 500 ids of a flow of 5,000.
SELECT asked.id
FROM unnest($2::text[]) AS asked (id), LATERAL (
    SELECT FROM edges WHERE child_qid = $1 AND child = asked.id AND done < 1 LIMIT 1
) e;

-- name: redirect_edges: parents that wait for an id wait for another job, and know it by that id
UPDATE edges SET child = $1, asked = $2 WHERE child_qid = $3 AND child = $2 AND done = 0;

-- name: tying: whether more edges of a parent follow, from this flow (see submission.py)
SELECT 1 FROM edges WHERE parent = $1 AND ordinal = -1 AND asked = $2;

-- name: all_tied: no more edges of a parent follow
DELETE FROM edges WHERE parent = $1 AND ordinal = -1;

-- name: add_signal: store a signal until the handler receives it
INSERT INTO signals (pk, n, name, value)
SELECT $1, 1 + coalesce((SELECT max(n) FROM signals WHERE pk = $1), 0), $2, $3::bytea;

-- name: last_signal: how many signals a job has
SELECT coalesce(max(n), 0) FROM signals WHERE pk = $1;

-- name: signals_of: the signals of a job, oldest first
SELECT name, value FROM signals WHERE pk = $1 ORDER BY n;

-- name: count_signals: how many signals of a name a job has
SELECT count(*) FROM signals WHERE pk = $1 AND name = $2;

-- name: add_line: append a line to a job's log
INSERT INTO logs (pk, n, line)
SELECT $1, 1 + coalesce((SELECT max(n) FROM logs WHERE pk = $1), 0), $2;

-- name: trim_lines: delete all but the last lines of a job's log
DELETE FROM logs WHERE pk = $1 AND n <= (SELECT max(n) FROM logs WHERE pk = $1) - $2;

-- name: lines_of: a job's log, oldest line first
SELECT line FROM logs WHERE pk = $1 ORDER BY n;

-- name: note: store the progress and the checkpoint that a running job reports, unless a newer
--   checkpoint is stored (copies core/rules/outcomes.py: is_late)
UPDATE jobs_hot
SET progress = coalesce($1::bytea, progress),
    saved = CASE
        WHEN $3::bigint > 0 AND (attempt::bigint << 32 | $3::bigint) <= saved_place THEN saved
        ELSE coalesce($2::bytea, saved)
    END,
    saved_place = CASE
        WHEN $3::bigint > 0 THEN greatest(attempt::bigint << 32 | $3::bigint, saved_place)
        ELSE saved_place
    END,
    flags = flags | $4
WHERE pk = $5 AND id = $6 AND state = 3 AND token = $7
    AND qid = (SELECT qid FROM queues WHERE tenant = $8 AND name = $9) RETURNING flags, qid;

-- name: add_error: store a failed run
INSERT INTO errors (pk, attempt, failure) VALUES ($1, $2, $3)
ON CONFLICT (pk, attempt) DO UPDATE SET failure = excluded.failure;

-- name: trim_errors: delete all but the last failed runs of a job
DELETE FROM errors
WHERE pk = $1 AND attempt <= (
    SELECT attempt FROM errors WHERE pk = $1 ORDER BY attempt DESC LIMIT 1 OFFSET $2
);

-- name: errors_of: the failed runs of a job, oldest first
SELECT failure FROM errors WHERE pk = $1 ORDER BY attempt;

-- name: delete_errors: delete the failed runs of a job
DELETE FROM errors WHERE pk = $1;

-- name: put_step: store what a step of a job has recorded
INSERT INTO steps (pk, name, data) VALUES ($1, $2, $3)
ON CONFLICT (pk, name) DO UPDATE SET data = excluded.data;

-- name: steps_of: what the steps of a job have recorded
SELECT name, data FROM steps WHERE pk = $1 ORDER BY name;

-- name: delete_steps: delete the steps of a job
DELETE FROM steps WHERE pk = $1;

-- name: delete_job: delete a job
DELETE FROM jobs WHERE pk = $1;

-- name: delete_jobs: delete the ended jobs of a list
DELETE FROM jobs_ended WHERE pk = ANY ($1::bigint[]);

-- name: delete_lines: delete a job's log
DELETE FROM logs WHERE pk = $1;

-- name: delete_signals: delete a job's signals
DELETE FROM signals WHERE pk = $1;

-- name: delete_edges: delete a parent's edges
DELETE FROM edges WHERE parent = $1;

-- name: begin_flow: register a flow
INSERT INTO flows (tenant, flow, begun_ms, done) VALUES ($1, $2, $3, 0)
ON CONFLICT (tenant, flow) DO NOTHING;

-- name: flow: the state of a flow. Calls of one flow wait for each other here.
SELECT done FROM flows WHERE tenant = $1 AND flow = $2 FOR NO KEY UPDATE;

-- name: flow_now: the same, and nothing is locked
SELECT done FROM flows WHERE tenant = $1 AND flow = $2;

-- name: set_flow: change the state of a flow; a complete one is kept, so that a repeated call
-- changes nothing
UPDATE flows SET done = $1, begun_ms = $2 WHERE tenant = $3 AND flow = $4;

-- name: stage: store a member of a flow, or a part of its edges
INSERT INTO staged (tenant, flow, n, weight, place, queue, id, spec)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8);

-- name: staged_ends: the lowest and the highest place of a flow. Without statistics, min() and
-- max() read all of them.
SELECT coalesce((
    SELECT n FROM staged WHERE tenant = $1 AND flow = $2 ORDER BY n LIMIT 1
), 0), coalesce((
    SELECT n FROM staged WHERE tenant = $1 AND flow = $2 ORDER BY n DESC LIMIT 1
), 0);

-- name: staged_among: which of these ids of a queue are stored for a flow, and the ids of the jobs
-- that represent those that have become no job
SELECT s.id, s.stands_for
FROM unnest($4::text[]) AS asked (id), LATERAL (
    SELECT id, CASE WHEN n >= 1073741824 THEN spec END AS stands_for FROM staged
    WHERE tenant = $1 AND flow = $2 AND queue = $3 AND id = asked.id AND id != '' LIMIT 1
) s;

-- name: next_weights: the next members of a flow that are not jobs yet, and what they cost
SELECT n, weight FROM staged
WHERE tenant = $1 AND flow = $2 AND n > $3 AND n < 1073741824 ORDER BY n LIMIT $4;

-- name: next_staged: the members between two places
SELECT n, place, id, spec FROM staged WHERE tenant = $1 AND flow = $2 AND n > $3 AND n <= $4
ORDER BY n;

-- name: next_places: members of a flow in any state, and whether they have a place in their queue
SELECT n, place, queue FROM staged WHERE tenant = $1 AND flow = $2 ORDER BY n LIMIT $3;

-- name: staged: the members of a flow, in the order in which they came
SELECT spec FROM staged WHERE tenant = $1 AND flow = $2 ORDER BY abs(n);

-- name: unstage: delete the members between two places
DELETE FROM staged WHERE tenant = $1 AND flow = $2 AND n > $3 AND n <= $4;

-- name: old_flows: flows that were begun before a time, or are complete since then
SELECT tenant, flow, done FROM flows WHERE begun_ms < $1 AND done < 2 ORDER BY begun_ms LIMIT $2
FOR UPDATE SKIP LOCKED;

-- name: left_flows: flows that a caller has left before they were complete or discarded
SELECT tenant, flow, done FROM flows WHERE done >= 2 AND begun_ms < $1 LIMIT $2;

-- name: drop_flow: delete a flow
DELETE FROM flows WHERE tenant = $1 AND flow = $2;
