-- Statements of the hot paths: put, claim and settle. Braces name column lists (statements.py).

-- name: queue: a queue by name
SELECT {queue} FROM queues WHERE tenant = ? AND name = ?;

-- name: make_queue: create a queue
INSERT INTO queues (tenant, name) VALUES (?, ?);

-- name: next_wait: when the next wait of a blocked job times out
SELECT at_ms FROM jobs WHERE qid = ? AND state = 1 AND keep = 0 AND at_ms < 9007199254740992
ORDER BY at_ms LIMIT 1;

-- name: save_queue: write the row of a queue
UPDATE queues SET {queue_assigned} WHERE qid = ?;

-- name: insert_job: insert a new job, unless its id exists
INSERT INTO jobs ({new_job}, keep, attempt, failures, stalls, follows)
VALUES ({new_job_values}, 0, 0, 0, 0, 0)
ON CONFLICT (qid, id) DO NOTHING;

-- name: taken: the ids of a list that existed before: their jobs have none of the new places
SELECT id FROM jobs
WHERE qid = ? AND id IN (SELECT value FROM json_each(?)) AND abs(seq) NOT BETWEEN ? AND ?;

-- name: claim_plain: claim the jobs at the head of a queue; returned in no order
UPDATE jobs
SET state = 3, attempt = attempt + 1, token = {new_token} || ?1, worker = ?2, started_ms = ?3,
    at_ms = ?4, keep = 0
WHERE pk IN (
    SELECT pk FROM jobs
    WHERE qid = ?5 AND state = 2 AND key IS NULL AND (at_ms IS NULL OR at_ms > ?3)
    ORDER BY priority DESC, seq LIMIT ?6
)
RETURNING {claimed};

-- name: head_of_queue: the jobs that claim_plain would claim, in order
SELECT {claiming} FROM jobs
WHERE qid = ?1 AND state = 2 AND key IS NULL AND (at_ms IS NULL OR at_ms > ?2)
ORDER BY priority DESC, seq LIMIT ?3;

-- name: head_facts: what decides whether the jobs at the head of a plain queue may start
SELECT {head} FROM jobs
WHERE qid = ?1 AND state = 2 AND key IS NULL AND (at_ms IS NULL OR at_ms > ?2)
ORDER BY priority DESC, seq LIMIT ?3;

-- name: claim_one: claim one job
UPDATE jobs
SET state = 3, attempt = attempt + 1, token = ?1, worker = ?2, started_ms = ?3, at_ms = ?4, keep = 0
WHERE pk = ?5;

-- name: claim_these: claim the jobs of a list
UPDATE jobs
SET state = 3, attempt = attempt + 1, token = {new_token} || ?1, worker = ?2, started_ms = ?3,
    at_ms = ?4, keep = 0
WHERE pk IN (SELECT value FROM json_each(?5)) AND state = 2
RETURNING {claimed};

-- name: claimed_by_call: the jobs that a call has claimed, for when it is repeated
SELECT {claimed}, token, started_ms, at_ms
FROM jobs WHERE qid = ? AND state = 3 AND keep = 0 AND token = {token} || ?;

-- name: complete: complete a job whose end changes only its own row (no flag of rows.ENDING)
UPDATE jobs SET state = 4, result = ?, finished_ms = ?, at_ms = ?, keep = flags & 1
WHERE pk = ? AND token = ? AND id = ? AND state = 3 AND flags & 126 = 0;

-- name: load_job: a job by number
SELECT {job} FROM jobs WHERE pk = ?;

-- name: load_jobs: jobs by number, in the order of the queue
SELECT {job} FROM jobs WHERE pk IN (SELECT value FROM json_each(?)) ORDER BY priority DESC, seq;

-- name: find_job: a job by id
SELECT {job} FROM jobs WHERE qid = ? AND id = ?;

-- name: save_job: write the row of a job
UPDATE jobs SET {job_assigned} WHERE pk = ?;

-- States are literals. If they were parameters, SQLite would prepare a statement again (45 µs)
-- whenever a parameter that a partial index depends on gets another value.

-- name: anything_due: whether the time of a delayed, active, waiting or blocked job has come
SELECT EXISTS (SELECT 1 FROM jobs WHERE qid = ?1 AND state = 0 AND keep = 0 AND at_ms <= ?2),
       EXISTS (SELECT 1 FROM jobs WHERE qid = ?1 AND state = 3 AND keep = 0 AND at_ms <= ?2),
       EXISTS (SELECT 1 FROM jobs WHERE qid = ?1 AND state = 2 AND keep = 0 AND at_ms <= ?2),
       EXISTS (SELECT 1 FROM jobs WHERE qid = ?1 AND state = 1 AND keep = 0 AND at_ms <= ?2);

-- name: due: delayed jobs whose time has come, in order
SELECT {job} FROM jobs WHERE qid = ? AND state = 0 AND keep = 0 AND at_ms <= ?
ORDER BY at_ms, pk LIMIT ?;

-- name: stalled: active jobs whose lease has expired
SELECT {job} FROM jobs WHERE qid = ? AND state = 3 AND keep = 0 AND at_ms <= ?
ORDER BY at_ms LIMIT ?;

-- name: expired: waiting jobs whose ttl is over
SELECT {job} FROM jobs WHERE qid = ? AND state = 2 AND keep = 0 AND at_ms <= ?
ORDER BY at_ms LIMIT ?;

-- name: overdue: blocked jobs whose wait has timed out
SELECT {job} FROM jobs WHERE qid = ? AND state = 1 AND keep = 0 AND at_ms <= ?
ORDER BY at_ms LIMIT ?;

-- name: next_due: when the next delayed job is due
SELECT at_ms FROM jobs WHERE qid = ? AND state = 0 AND keep = 0 AND at_ms IS NOT NULL
ORDER BY at_ms LIMIT 1;

-- name: next_expiry: when the next lease expires
SELECT at_ms FROM jobs WHERE qid = ? AND state = 3 AND keep = 0 AND at_ms IS NOT NULL
ORDER BY at_ms LIMIT 1;

-- name: end_minute: store the metrics of a minute that is over
INSERT INTO minutes (qid, minute, {figures}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (qid, minute) DO UPDATE
SET accepted = accepted + excluded.accepted, started = started + excluded.started,
    completed = completed + excluded.completed, failed = failed + excluded.failed,
    cancelled = cancelled + excluded.cancelled, retried = retried + excluded.retried,
    stalled = stalled + excluded.stalled, wait_ms = wait_ms + excluded.wait_ms,
    run_ms = run_ms + excluded.run_ms;

-- name: log: append an entry to the event log
INSERT INTO events (at, logged, entry) VALUES (?1 * 1099511627776 + ?2, ?3, ?4);

-- name: last_call: the last exchange of a worker
SELECT call, stale FROM calls WHERE worker = ?;

-- name: remember_call: remember an exchange, in case its reply is lost
INSERT INTO calls (worker, call, at_ms, stale) VALUES (?, ?, ?, ?)
ON CONFLICT (worker) DO UPDATE
SET call = excluded.call, at_ms = excluded.at_ms, stale = excluded.stale;

-- name: extend: renew a lease
UPDATE jobs SET at_ms = ? + ? WHERE pk = ? AND id = ? AND state = 3 AND token = ?
    AND qid = (SELECT qid FROM queues WHERE tenant = ? AND name = ?) RETURNING flags;

-- name: any_waiting: whether any job of a queue waits, with a key or without
SELECT 1 WHERE EXISTS (SELECT 1 FROM jobs WHERE qid = ?1 AND state = 2 AND key IS NULL)
    OR EXISTS (SELECT 1 FROM jobs WHERE qid = ?1 AND state = 2 AND key IS NOT NULL);
