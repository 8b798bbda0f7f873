-- What belongs to a job: unique locks, edges of flows, signals, log lines, failed runs, steps.

-- name: lock: the holder of a unique lock
SELECT {lock} FROM locks WHERE qid = ? AND lock = ?;

-- name: take_lock: give a lock to a job, also if another holds it
INSERT INTO locks (qid, lock, {lock}) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (qid, lock) DO UPDATE
SET pk = excluded.pk, until_ms = excluded.until_ms, id = excluded.id;

-- name: drop_lock: delete a lock, if the job still holds it
DELETE FROM locks WHERE qid = ? AND lock = ? AND pk = ?;

-- name: sweep_locks: delete locks whose time is over
DELETE FROM locks WHERE (qid, lock) IN (SELECT qid, lock FROM locks WHERE until_ms <= ? LIMIT ?);

-- name: add_edge: a parent waits for a child
INSERT INTO edges (parent, {edge}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: edges_of: the jobs that a parent waits or waited for
SELECT {edge} FROM edges WHERE parent = ? ORDER BY ordinal;

-- name: edge_names: the same by the ids under which the parent knows them
SELECT child_qid, ifnull(asked, child) FROM edges WHERE parent = ?;

-- name: any_open: whether a parent still waits for a child
SELECT 1 FROM edges WHERE parent = ? AND done = 0 LIMIT 1;

-- name: parent: what the end of a child needs of its parent; not the payload
SELECT state, follows, options FROM jobs WHERE pk = ?;

-- name: waiting_parents: parents that wait for a child
SELECT parent, ordinal, data FROM edges WHERE child_qid = ? AND child = ? AND done = 0 LIMIT ?;

-- name: parents_of: parents that wait or waited for a child
SELECT DISTINCT q.tenant, q.name, j.id
FROM edges e JOIN jobs j ON j.pk = e.parent JOIN queues q ON q.qid = j.qid
WHERE e.child_qid = ? AND e.child = ? LIMIT 1000;

-- name: children_of: children that a parent waits or waited for
SELECT q.tenant, q.name, e.child FROM edges e JOIN queues q ON q.qid = e.child_qid
WHERE e.parent = ? AND e.ordinal >= 0
GROUP BY e.child_qid, e.child ORDER BY min(e.ordinal) LIMIT 20000;

-- name: end_edge: store the end of a child
UPDATE edges SET done = ?, result = ?, codec = ?, failure = ? WHERE parent = ? AND ordinal = ?;

-- name: reopen_edge: a parent waits again for a child that is run again
UPDATE edges SET done = 0, result = NULL, failure = NULL WHERE parent = ? AND ordinal = ?;

-- name: awaited: which of these ids are waited for
SELECT DISTINCT child FROM edges
WHERE child_qid = ? AND child IN (SELECT value FROM json_each(?)) AND done = 0;

-- name: redirect_edges: parents that wait for an id wait for another job, and know it by that id
UPDATE edges SET child = ?1, asked = ?2 WHERE child_qid = ?3 AND child = ?2 AND done = 0;

-- name: tying: whether more edges of a parent follow, from this flow (see submission.py)
SELECT 1 FROM edges WHERE parent = ? AND ordinal = -1 AND asked = ?;

-- name: all_tied: no more edges of a parent follow
DELETE FROM edges WHERE parent = ? AND ordinal = -1;

-- name: add_signal: store a signal until the handler receives it
INSERT INTO signals (pk, n, name, value)
SELECT ?1, 1 + ifnull((SELECT max(n) FROM signals WHERE pk = ?1), 0), ?2, ?3;

-- name: last_signal: how many signals a job has
SELECT coalesce(max(n), 0) FROM signals WHERE pk = ?;

-- name: signals_of: the signals of a job, oldest first
SELECT name, value FROM signals WHERE pk = ? ORDER BY n;

-- name: count_signals: how many signals of a name a job has
SELECT count(*) FROM signals WHERE pk = ? AND name = ?;

-- name: add_line: append a line to a job's log
INSERT INTO logs (pk, n, line)
SELECT ?1, 1 + ifnull((SELECT max(n) FROM logs WHERE pk = ?1), 0), ?2;

-- name: trim_lines: delete all but the last lines of a job's log
DELETE FROM logs WHERE pk = ?1 AND n <= (SELECT max(n) FROM logs WHERE pk = ?1) - ?2;

-- name: lines_of: a job's log, oldest line first
SELECT line FROM logs WHERE pk = ? ORDER BY n;

-- name: note: store the progress and the checkpoint that a running job reports, unless a newer
--   checkpoint is stored (copies core/rules/outcomes.py: is_late)
UPDATE jobs SET progress = ifnull(?1, progress),
    saved = iif(?3 > 0 AND (attempt << 32 | ?3) <= saved_place, saved, ifnull(?2, saved)),
    saved_place = iif(?3 > 0, max(attempt << 32 | ?3, saved_place), saved_place),
    flags = flags | ?4
WHERE pk = ?5 AND id = ?6 AND state = 3 AND token = ?7
    AND qid = (SELECT qid FROM queues WHERE tenant = ?8 AND name = ?9) RETURNING flags, qid;

-- name: add_error: store a failed run
INSERT OR REPLACE INTO errors (pk, attempt, failure) VALUES (?, ?, ?);

-- name: trim_errors: delete all but the last failed runs of a job
DELETE FROM errors
WHERE pk = ?1 AND attempt <= (
    SELECT attempt FROM errors WHERE pk = ?1 ORDER BY attempt DESC LIMIT 1 OFFSET ?2
);

-- name: errors_of: the failed runs of a job, oldest first
SELECT failure FROM errors WHERE pk = ? ORDER BY attempt;

-- name: delete_errors: delete the failed runs of a job
DELETE FROM errors WHERE pk = ?;

-- name: put_step: store what a step of a job has recorded
INSERT INTO steps (pk, name, data) VALUES (?, ?, ?)
ON CONFLICT (pk, name) DO UPDATE SET data = excluded.data;

-- name: steps_of: what the steps of a job have recorded
SELECT name, data FROM steps WHERE pk = ? ORDER BY name;

-- name: delete_steps: delete the steps of a job
DELETE FROM steps WHERE pk = ?;

-- name: delete_job: delete a job
DELETE FROM jobs WHERE pk = ?;

-- name: delete_jobs: delete the jobs of a list
DELETE FROM jobs WHERE pk IN (SELECT value FROM json_each(?));

-- name: delete_lines: delete a job's log
DELETE FROM logs WHERE pk = ?;

-- name: delete_signals: delete a job's signals
DELETE FROM signals WHERE pk = ?;

-- name: delete_edges: delete a parent's edges
DELETE FROM edges WHERE parent = ?;

-- name: begin_flow: register a flow
INSERT INTO flows (tenant, flow, begun_ms, done) VALUES (?, ?, ?, 0)
ON CONFLICT (tenant, flow) DO NOTHING;

-- name: flow: the state of a flow
SELECT done FROM flows WHERE tenant = ? AND flow = ?;

-- name: flow_now: the same, and nothing is locked
SELECT done FROM flows WHERE tenant = ? AND flow = ?;

-- name: set_flow: change the state of a flow; a complete one is kept, so that a repeated call
-- changes nothing
UPDATE flows SET done = ?, begun_ms = ? WHERE tenant = ? AND flow = ?;

-- name: stage: store a member of a flow, or a part of its edges
INSERT INTO staged (tenant, flow, n, weight, place, queue, id, spec)
VALUES (?, ?, ?, ?, ?, ?, ?, ?);

-- name: staged_ends: the lowest and the highest place of a flow
SELECT ifnull((SELECT min(n) FROM staged WHERE tenant = ?1 AND flow = ?2), 0),
    ifnull((SELECT max(n) FROM staged WHERE tenant = ?1 AND flow = ?2), 0);

-- name: staged_among: which of these ids of a queue are stored for a flow, and the ids of the jobs
-- that represent those that have become no job. SQLite would read the whole flow by its key.
SELECT id, CASE WHEN n >= 1073741824 THEN spec END FROM staged INDEXED BY staged_identity
WHERE tenant = ? AND flow = ? AND queue = ? AND id != ''
    AND id IN (SELECT value FROM json_each(?));

-- name: next_weights: the next members of a flow that are not jobs yet, and what they cost
SELECT n, weight FROM staged
WHERE tenant = ? AND flow = ? AND n > ? AND n < 1073741824 ORDER BY n LIMIT ?;

-- name: next_staged: the members between two places
SELECT n, place, id, spec FROM staged WHERE tenant = ? AND flow = ? AND n > ? AND n <= ?
ORDER BY n;

-- name: next_places: members of a flow in any state, and whether they have a place in their queue
SELECT n, place, queue FROM staged WHERE tenant = ? AND flow = ? ORDER BY n LIMIT ?;

-- name: staged: the members of a flow, in the order in which they came
SELECT spec FROM staged WHERE tenant = ? AND flow = ? ORDER BY abs(n);

-- name: unstage: delete the members between two places
DELETE FROM staged WHERE tenant = ? AND flow = ? AND n > ? AND n <= ?;

-- name: old_flows: flows that were begun before a time, or are complete since then
SELECT tenant, flow, done FROM flows WHERE begun_ms < ? AND done < 2 LIMIT ?;

-- name: left_flows: flows that a caller has left before they were complete or discarded
SELECT tenant, flow, done FROM flows WHERE done >= 2 AND begun_ms < ? LIMIT ?;

-- name: drop_flow: delete a flow
DELETE FROM flows WHERE tenant = ? AND flow = ?;
