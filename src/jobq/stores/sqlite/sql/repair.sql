-- Finds and repairs rows with values that jobq never writes, after a call has met one.
-- Text is read as blobs, because apsw cannot return text that is not UTF-8.

-- name: qid: the number of a queue
SELECT qid FROM queues WHERE tenant = ? AND name = ?;

-- name: qids: the numbers of all queues
SELECT qid FROM queues ORDER BY qid;

-- name: job_by_id: the number of a job
SELECT pk FROM jobs WHERE qid = ? AND id = ?;

-- name: head_waiting: the jobs that a plain queue starts next
SELECT pk FROM jobs WHERE qid = ?1 AND state = 2 AND key IS NULL
ORDER BY priority DESC, seq LIMIT ?2;

-- name: tail_waiting: the jobs that a plain queue starts last
SELECT pk FROM jobs WHERE qid = ?1 AND state = 2 AND key IS NULL
ORDER BY priority, seq DESC LIMIT ?2;

-- name: first_keyed: the waiting jobs of a keyed queue, in the order of their keys
SELECT pk FROM jobs WHERE qid = ?1 AND state = 2 AND key IS NOT NULL
ORDER BY key, priority DESC, seq LIMIT ?2;

-- name: next_keyed: the job that each ready key starts next, ignoring ttls
SELECT (
    SELECT pk FROM jobs l
    WHERE l.qid = k.qid AND l.key = k.key AND l.state = 2 AND l.key IS NOT NULL
    ORDER BY l.priority DESC, l.seq LIMIT 1
)
FROM keys k WHERE k.qid = ?1 AND k.ready = 1 ORDER BY k.turn LIMIT ?2;

-- name: first_timed: the jobs of a state whose time comes first
SELECT pk FROM jobs WHERE qid = ?1 AND state = ?3 AND keep = ?4 AND at_ms IS NOT NULL
ORDER BY at_ms LIMIT ?2;

-- name: last_timed: the jobs of a state whose time comes last
SELECT pk FROM jobs WHERE qid = ?1 AND state = ?3 AND keep = ?4 AND at_ms IS NOT NULL
ORDER BY at_ms DESC LIMIT ?2;

-- name: next_jobs: jobs of all queues in the order of their numbers
SELECT pk FROM jobs WHERE pk > ?1 ORDER BY pk LIMIT ?2;

-- name: check_jobs: whether jobs have sound values, whether an index finds them, and their text
SELECT pk,
    {job_sound} AND qid IN (SELECT qid FROM queues),
    CASE WHEN state = 2 THEN due_ms IS NOT NULL
         WHEN state < 4 THEN at_ms IS NOT NULL AND keep = 0
         ELSE at_ms IS NOT NULL END,
    {job_texts}
FROM jobs WHERE pk IN (SELECT value FROM json_each(?));

-- name: inspect_jobs: the type and the harmless value of each column of some jobs
SELECT {job_inspected} FROM jobs WHERE pk IN (SELECT value FROM json_each(?));

-- name: inspect_queues: the same for all queues
SELECT {queue_inspected} FROM queues;

-- name: bad_keys: whether a queue has keys with values of a wrong type
SELECT 1 FROM keys
WHERE qid = ? AND (typeof(key) != 'text' OR typeof(waiting) != 'integer'
    OR typeof(active) != 'integer' OR typeof(turn) != 'integer' OR typeof(ready) != 'integer'
    OR typeof(held_ms) != 'integer' OR typeof(rate_until_ms) != 'integer'
    OR typeof(rate) NOT IN ('blob', 'null')) LIMIT 1;

-- name: waiting_without_key: waiting jobs that no claim of a keyed queue finds
SELECT pk FROM jobs WHERE qid = ? AND state = 2 AND key IS NULL LIMIT ?;

-- name: waiting_with_key: waiting jobs that no claim of a plain queue finds
SELECT pk FROM jobs WHERE qid = ? AND state = 2 AND key IS NOT NULL LIMIT ?;

-- name: patrol: the next jobs in the order of their numbers, and whether no index would find them
SELECT pk,
    typeof(state) != 'integer' OR state NOT BETWEEN 0 AND 6
    OR CASE WHEN state = 2 THEN due_ms IS NULL
            WHEN state < 4 THEN typeof(at_ms) != 'integer' OR keep != 0
            ELSE typeof(at_ms) != 'integer' END
FROM jobs WHERE pk > ?1 ORDER BY pk LIMIT ?2;

-- name: any_keyed: whether a queue has a job with a key
SELECT EXISTS (SELECT 1 FROM jobs WHERE qid = ? AND key IS NOT NULL);

-- name: states: how many jobs of a queue are in each state
SELECT state, count(*) FROM jobs WHERE qid = ? GROUP BY state;

-- name: key_states: how many jobs of each key wait and run
SELECT key, sum(state = 2), sum(state = 3) FROM jobs
WHERE qid = ? AND key IS NOT NULL AND state IN (2, 3) GROUP BY key;

-- name: last_seq: the last place that was given in a queue
SELECT max(abs(seq)) FROM jobs WHERE qid = ? AND typeof(seq) = 'integer';

-- name: last_entry: the last entry of a queue's log
SELECT at - ?1 * 1099511627776, logged FROM events
WHERE at > ?1 * 1099511627776 AND at < (?1 + 1) * 1099511627776 ORDER BY at DESC LIMIT 1;

-- name: held_keys: keys with a hold or a rate in use, if their values have the right types
SELECT CAST(key AS BLOB), rate, rate_until_ms, held_ms FROM keys
WHERE qid = ?1 AND typeof(key) = 'text' AND typeof(rate) IN ('blob', 'null')
    AND typeof(rate_until_ms) = 'integer' AND typeof(held_ms) = 'integer'
    AND (rate_until_ms > ?2 OR held_ms > ?2);

-- name: drop_keys: all keys of a queue
DELETE FROM keys WHERE qid = ?;

-- name: drop_locks_of: the locks of a job
DELETE FROM locks WHERE qid = ? AND pk = ?;
