-- Statements of the hot paths: put, claim, settle, and what every write transaction ends with.

-- name: queue: one queue by name
SELECT {queue} FROM queues WHERE tenant = ? AND name = ?;

-- name: make_queue: a queue nobody declared
INSERT INTO queues (tenant, name) VALUES (?, ?);

-- name: next_wait: when the next wait of a blocked job times out
SELECT at_ms FROM jobs WHERE qid = ? AND state = 1 AND keep = 0 AND at_ms < 9007199254740992 ORDER BY at_ms LIMIT 1;

-- name: save_queue: all of a queue's row that changes
UPDATE queues SET {queue_assigned} WHERE qid = ?;

-- name: insert_job: a new job, or nothing where the id is taken
INSERT INTO jobs ({new_job}, keep, attempt, failures, stalls, follows)
VALUES ({new_job_values}, 0, 0, 0, 0, 0)
ON CONFLICT (qid, id) DO NOTHING;

-- name: taken: ids of the list that were there before, so do not have one of the new places
SELECT id FROM jobs WHERE qid = ? AND id IN (SELECT value FROM json_each(?)) AND abs(seq) NOT BETWEEN ? AND ?;

-- name: claim_plain: the head of the line becomes active; not in order (RETURNING has none)
UPDATE jobs SET state = 3, attempt = attempt + 1, token = pk || ?1, worker = ?2, started_ms = ?3, at_ms = ?4, keep = 0
WHERE pk IN (SELECT pk FROM jobs WHERE qid = ?5 AND state = 2 AND key IS NULL AND (at_ms IS NULL OR at_ms > ?3)
             ORDER BY priority DESC, seq LIMIT ?6)
RETURNING {claimed};

-- name: head_of_queue: what claim_plain would return, as it will be; in order
SELECT {claiming} FROM jobs WHERE qid = ?1 AND state = 2 AND key IS NULL AND (at_ms IS NULL OR at_ms > ?2) ORDER BY priority DESC, seq LIMIT ?3;

-- name: head_facts: what decides whether the jobs at the head of a plain queue may start (rows.HeadOfQueue)
SELECT {head} FROM jobs WHERE qid = ?1 AND state = 2 AND key IS NULL AND (at_ms IS NULL OR at_ms > ?2)
ORDER BY priority DESC, seq LIMIT ?3;

-- name: claim_one: a job becomes active
UPDATE jobs SET state = 3, attempt = attempt + 1, token = ?1, worker = ?2, started_ms = ?3, at_ms = ?4, keep = 0 WHERE pk = ?5;

-- name: claim_these: the jobs of a list become active
UPDATE jobs SET state = 3, attempt = attempt + 1, token = pk || ?1, worker = ?2, started_ms = ?3, at_ms = ?4, keep = 0
WHERE pk IN (SELECT value FROM json_each(?5)) AND state = 2
RETURNING {claimed};

-- name: claimed_by_call: the leases a repeated call was given the first time
SELECT {claimed}, token, started_ms, at_ms
FROM jobs WHERE qid = ? AND state = 3 AND keep = 0 AND token = pk || ?;

-- name: complete: the end of a job nobody else has a stake in (no flag of rows.ENDING); the record stays until at_ms
UPDATE jobs SET state = 4, result = ?, finished_ms = ?, at_ms = ?, keep = flags & 1
WHERE pk = ? AND token = ? AND id = ? AND state = 3 AND flags & 126 = 0;

-- name: load_job: one whole row by number
SELECT {job} FROM jobs WHERE pk = ?;

-- name: load_jobs: whole rows
SELECT {job} FROM jobs WHERE pk IN (SELECT value FROM json_each(?)) ORDER BY priority DESC, seq;

-- name: find_job: one whole row by id
SELECT {job} FROM jobs WHERE qid = ? AND id = ?;

-- name: save_job: a whole row
UPDATE jobs SET {job_assigned} WHERE pk = ?;

-- States are written out, not bound: SQLite prepares a statement anew (45 µs) whenever a parameter that a partial index
-- looks at is bound to another value.

-- name: anything_due: whether the time of a delayed, active, waiting or blocked job has come
SELECT EXISTS (SELECT 1 FROM jobs WHERE qid = ?1 AND state = 0 AND keep = 0 AND at_ms <= ?2),
       EXISTS (SELECT 1 FROM jobs WHERE qid = ?1 AND state = 3 AND keep = 0 AND at_ms <= ?2),
       EXISTS (SELECT 1 FROM jobs WHERE qid = ?1 AND state = 2 AND keep = 0 AND at_ms <= ?2),
       EXISTS (SELECT 1 FROM jobs WHERE qid = ?1 AND state = 1 AND keep = 0 AND at_ms <= ?2);

-- name: due: delayed jobs whose time has come, soonest first
SELECT {job} FROM jobs WHERE qid = ? AND state = 0 AND keep = 0 AND at_ms <= ? ORDER BY at_ms, pk LIMIT ?;

-- name: stalled: active jobs whose lease has expired
SELECT {job} FROM jobs WHERE qid = ? AND state = 3 AND keep = 0 AND at_ms <= ? ORDER BY at_ms LIMIT ?;

-- name: expired: waiting jobs past their ttl
SELECT {job} FROM jobs WHERE qid = ? AND state = 2 AND keep = 0 AND at_ms <= ? ORDER BY at_ms LIMIT ?;

-- name: overdue: blocked jobs whose wait is over
SELECT {job} FROM jobs WHERE qid = ? AND state = 1 AND keep = 0 AND at_ms <= ? ORDER BY at_ms LIMIT ?;

-- name: next_due: when the next delayed job is due
SELECT at_ms FROM jobs WHERE qid = ? AND state = 0 AND keep = 0 AND at_ms IS NOT NULL ORDER BY at_ms LIMIT 1;

-- name: next_expiry: when the next lease expires
SELECT at_ms FROM jobs WHERE qid = ? AND state = 3 AND keep = 0 AND at_ms IS NOT NULL ORDER BY at_ms LIMIT 1;

-- name: end_minute: a minute's figures, when the next one has begun
INSERT INTO minutes (qid, minute, {figures}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (qid, minute) DO UPDATE SET accepted = accepted + excluded.accepted, started = started + excluded.started,
    completed = completed + excluded.completed, failed = failed + excluded.failed, cancelled = cancelled + excluded.cancelled,
    retried = retried + excluded.retried, stalled = stalled + excluded.stalled, wait_ms = wait_ms + excluded.wait_ms,
    run_ms = run_ms + excluded.run_ms;

-- name: log: an entry of the event log
INSERT INTO events VALUES (?1 * 1099511627776 + ?2, ?3, ?4);

-- name: last_call: the last exchange of a worker
SELECT call, stale FROM calls WHERE worker = ?;

-- name: remember_call: for when the reply is lost
INSERT INTO calls VALUES (?, ?, ?, ?) ON CONFLICT (worker) DO UPDATE SET call = excluded.call, at_ms = excluded.at_ms, stale = excluded.stale;

-- name: extend: renew a lease
UPDATE jobs SET at_ms = ? WHERE pk = ? AND id = ? AND state = 3 AND token = ? RETURNING flags;

-- name: any_waiting: whether a job waits at all, in a plain queue or in a keyed one
SELECT 1 WHERE EXISTS (SELECT 1 FROM jobs WHERE qid = ?1 AND state = 2 AND key IS NULL)
    OR EXISTS (SELECT 1 FROM jobs WHERE qid = ?1 AND state = 2 AND key IS NOT NULL);
