-- What ties jobs together: unique locks, edges of flows, signals, log lines.

-- name: lock: who holds it
SELECT {lock} FROM locks WHERE qid = ? AND lock = ?;

-- name: take_lock: for this job, whoever had it
INSERT INTO locks (qid, lock, {lock}) VALUES (?, ?, ?, ?, ?) ON CONFLICT (qid, lock) DO UPDATE SET pk = excluded.pk, until_ms = excluded.until_ms, id = excluded.id;

-- name: drop_lock: if it is (still) this job's
DELETE FROM locks WHERE qid = ? AND lock = ? AND pk = ?;

-- name: sweep_locks: those whose time has passed
DELETE FROM locks WHERE (qid, lock) IN (SELECT qid, lock FROM locks WHERE until_ms <= ? LIMIT ?);

-- name: add_edge: a parent waits for a child
INSERT INTO edges (parent, {edge}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: edges_of: what a parent waits or waited for
SELECT {edge} FROM edges WHERE parent = ? ORDER BY ordinal;

-- name: edge_names: the same, as they are called
SELECT child_qid, ifnull(asked, child) FROM edges WHERE parent = ?;

-- name: any_open: whether a parent still waits for a child
SELECT 1 FROM edges WHERE parent = ? AND done = 0 LIMIT 1;

-- name: parent: what the end of a child asks of it; not its payload
SELECT state, follows, options FROM jobs WHERE pk = ?;

-- name: waiting_parents: the edges that end with this child; a batch at a time
SELECT parent, ordinal, data FROM edges WHERE child_qid = ? AND child = ? AND done = 0 LIMIT ?;

-- name: parents_of: who waits or waited for a child
SELECT DISTINCT q.tenant, q.name, j.id FROM edges e JOIN jobs j ON j.pk = e.parent JOIN queues q ON q.qid = j.qid
WHERE e.child_qid = ? AND e.child = ? LIMIT 1000;

-- name: children_of: whom a parent waits or waited for
SELECT q.tenant, q.name, e.child FROM edges e JOIN queues q ON q.qid = e.child_qid WHERE e.parent = ?
GROUP BY e.child_qid, e.child ORDER BY min(e.ordinal) LIMIT 20000;

-- name: end_edge: the child has ended
UPDATE edges SET done = 1, result = ?, codec = ?, failure = ? WHERE parent = ? AND ordinal = ?;

-- name: add_signal: kept until it is taken
INSERT INTO signals SELECT ?1, 1 + ifnull((SELECT max(n) FROM signals WHERE pk = ?1), 0), ?2, ?3;

-- name: signals_of: oldest first
SELECT name, value FROM signals WHERE pk = ? ORDER BY n;

-- name: count_signals: of a name
SELECT count(*) FROM signals WHERE pk = ? AND name = ?;

-- name: add_line: of a job's log
INSERT INTO logs SELECT ?1, 1 + ifnull((SELECT max(n) FROM logs WHERE pk = ?1), 0), ?2;

-- name: trim_lines: keep the last ones
DELETE FROM logs WHERE pk = ?1 AND n <= (SELECT max(n) FROM logs WHERE pk = ?1) - ?2;

-- name: lines_of: oldest first
SELECT line FROM logs WHERE pk = ? ORDER BY n;

-- name: note: what a running job reports
UPDATE jobs SET progress = ifnull(?, progress), saved = ifnull(?, saved), flags = flags | ?
WHERE pk = ? AND id = ? AND state = 3 AND token = ? RETURNING flags;

-- name: add_error: a failed run
INSERT OR REPLACE INTO errors VALUES (?, ?, ?);

-- name: trim_errors: keep the last ones
DELETE FROM errors WHERE pk = ?1 AND attempt <= (SELECT attempt FROM errors WHERE pk = ?1 ORDER BY attempt DESC LIMIT 1 OFFSET ?2);

-- name: errors_of: the last failed runs, oldest first
SELECT failure FROM errors WHERE pk = ? ORDER BY attempt;

-- name: delete_errors: with their job
DELETE FROM errors WHERE pk = ?;

-- name: delete_job: the record
DELETE FROM jobs WHERE pk = ?;

-- name: delete_jobs: records of a list
DELETE FROM jobs WHERE pk IN (SELECT value FROM json_each(?));

-- name: delete_lines: with their job
DELETE FROM logs WHERE pk = ?;

-- name: delete_signals: with their job
DELETE FROM signals WHERE pk = ?;

-- name: delete_edges: with their parent
DELETE FROM edges WHERE parent = ?;

-- name: begin_flow: the first part of it
INSERT INTO flows VALUES (?, ?, ?, 0) ON CONFLICT (tenant, flow) DO NOTHING;

-- name: flow: how far it is
SELECT begun_ms, done FROM flows WHERE tenant = ? AND flow = ?;

-- name: stage: a member, not visible yet; nothing if it is there already
INSERT OR IGNORE INTO staged (tenant, flow, n, spec, queue, id, place)
SELECT ?1, ?2, 1 + ifnull((SELECT max(n) FROM staged WHERE tenant = ?1 AND flow = ?2), 0), ?3, ?4, ?5, ?6;

-- name: is_staged: whether a member is there already
SELECT 1 FROM staged WHERE tenant = ? AND flow = ? AND queue = ? AND id = ? AND id != '';

-- name: places_of: what a flow has reserved, by queue
SELECT queue, sum(place) FROM staged WHERE tenant = ? AND flow = ? GROUP BY queue HAVING sum(place) > 0;

-- name: staged: the members, in the order they came
SELECT spec FROM staged WHERE tenant = ? AND flow = ? ORDER BY n;

-- name: unstage: they are visible now, or swept
DELETE FROM staged WHERE tenant = ? AND flow = ?;

-- name: end_flow: it is visible; remembered for a while, so that finishing it again changes nothing
UPDATE flows SET done = 1 WHERE tenant = ? AND flow = ?;

-- name: old_flows: begun before a time
SELECT tenant, flow FROM flows WHERE begun_ms < ? LIMIT ?;

-- name: drop_unfinished: forget it, unless it is visible
DELETE FROM flows WHERE tenant = ? AND flow = ? AND done = 0;

-- name: drop_flow: forget it
DELETE FROM flows WHERE tenant = ? AND flow = ?;
