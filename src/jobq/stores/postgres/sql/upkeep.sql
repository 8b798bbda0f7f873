-- Upkeep by the clock, in bounded steps.
-- The braces of queries.FROM_FLOORS are empty, or make an index scan begin at a floor (floors.py).

-- name: queues: how many queues there are
SELECT count(*) FROM queues;

-- name: to_tick: the next queues in order, with what a tick may have to do: {queue}, then whether
-- jobs are due or past their retention, old metrics, how long the log is, how many jobs ended in
-- each way, whether workers sleep although jobs wait, and whether there are keys
SELECT {queue},
    coalesce(least(
        -- `min` and not EXISTS, which the planner may turn into a scan of the whole table.
        (SELECT min(at_ms) FROM jobs_hot j WHERE j.qid = q.qid AND state = 0{since_f}),
        (SELECT min(at_ms) FROM jobs_hot j WHERE j.qid = q.qid AND state = 1{since_f}),
        (SELECT min(at_ms) FROM jobs_hot j WHERE j.qid = q.qid AND state = 2{since_f}),
        (SELECT min(at_ms) FROM jobs_hot j WHERE j.qid = q.qid AND state = 3{since_f}),
        (SELECT min(at_ms) FROM jobs_ended j
         WHERE j.qid = q.qid AND state = 4 AND keep = 0{ended_f}),
        (SELECT min(at_ms) FROM jobs_ended j
         WHERE j.qid = q.qid AND state = 4 AND keep = 1{ended_f}),
        (SELECT min(at_ms) FROM jobs_ended j
         WHERE j.qid = q.qid AND state = 5 AND keep = 0{ended_f}),
        (SELECT min(at_ms) FROM jobs_ended j
         WHERE j.qid = q.qid AND state = 5 AND keep = 1{ended_f}),
        (SELECT min(at_ms) FROM jobs_ended j
         WHERE j.qid = q.qid AND state = 6 AND keep = 0{ended_f}),
        (SELECT min(at_ms) FROM jobs_ended j
         WHERE j.qid = q.qid AND state = 6 AND keep = 1{ended_f})
    ) <= $1, false)
        OR coalesce((SELECT min(minute) FROM minutes m WHERE m.qid = q.qid) < $2, false),
    CASE WHEN c.pos > c.dropped THEN c.logged ELSE 0 END,
    greatest(n_completed, n_failed, n_cancelled),
    (SELECT min(worker) FROM sleepers s WHERE s.qid = q.qid) IS NOT NULL AND (
        (SELECT max(priority) FROM jobs_hot j
         WHERE j.qid = q.qid AND state = 2 AND key IS NULL{no_waiting}) IS NOT NULL
        OR (SELECT min(turn) FROM keys k WHERE k.qid = q.qid AND ready = 1) IS NOT NULL
    ),
    mode = 'keyed' AND (SELECT min(key) FROM keys k WHERE k.qid = q.qid) IS NOT NULL
FROM queues q JOIN counts c USING (qid){floors_5} WHERE qid > $3 ORDER BY qid LIMIT $4;

-- name: unfollowed: jobs that a transaction of their handler completed, and that no worker settled
SELECT {job} FROM jobs_ended WHERE flags & 1024 <> 0 AND finished_ms <= $1
ORDER BY finished_ms LIMIT $2 FOR NO KEY UPDATE SKIP LOCKED;

-- name: past_retention: ended jobs whose retention is over, in order
SELECT pk, flags FROM jobs_ended WHERE qid = $1 AND state = $2 AND keep = $3 AND at_ms <= $4{since_6}
ORDER BY at_ms, pk LIMIT $5;

-- name: newest_beyond: the newest of the ended jobs beyond the number that is kept
SELECT at_ms, pk FROM jobs_ended WHERE qid = $1 AND state = $2 AND keep = 0
ORDER BY at_ms DESC, pk DESC LIMIT 1 OFFSET $3;

-- name: beyond_count: that one and those that expire before it, in order
SELECT pk, flags FROM jobs_ended
WHERE qid = $1 AND state = $2 AND keep = 0 AND (at_ms, pk) <= ($3::bigint, $4::bigint){since_6}
ORDER BY at_ms, pk LIMIT $5;

-- name: sweep_minutes: metrics of a queue that are past their time
DELETE FROM minutes
WHERE qid = $1 AND minute IN (
    SELECT minute FROM minutes WHERE qid = $1 AND minute < $2 LIMIT $3
);

-- A sweep reads the next rows in the order of the primary key and deletes the expired ones (see
-- upkeep.py). These tables have no index on their time, because it changes often.

-- name: next_workers: the next workers in order, with the time they count as present until
SELECT name, until_ms FROM workers WHERE name > $1 ORDER BY name LIMIT $2;

-- name: delete_worker: a worker that is gone
DELETE FROM workers WHERE name = $1;

-- name: next_listeners: the next listeners in order, with the time they are kept until
SELECT topic, mailbox, until_ms FROM listeners WHERE (topic, mailbox) > ($1, $2)
ORDER BY topic, mailbox LIMIT $3;

-- name: delete_listener: a listener that did not unregister
DELETE FROM listeners WHERE topic = $1 AND mailbox = $2;

-- name: next_sleepers: the next sleepers in order, with the time they fell asleep
SELECT qid, worker, since_ms FROM sleepers WHERE (qid, worker) > ($1, $2)
ORDER BY qid, worker LIMIT $3;

-- name: delete_sleeper: a sleeper that did not wake up
DELETE FROM sleepers WHERE qid = $1 AND worker = $2;

-- name: sweep_calls: calls that nobody will repeat; the oldest of those that are left
WITH old AS (
    SELECT caller, call, at_ms FROM calls WHERE at_ms >= $1 AND at_ms < $2
    ORDER BY at_ms LIMIT $3
),
swept AS (DELETE FROM calls c USING old WHERE (c.caller, c.call) = (old.caller, old.call))
SELECT max(at_ms), count(*) FROM old;

-- name: oldest_entries: the oldest entries of a queue's log
SELECT pos, number + n - 1, incarnation FROM numbers
WHERE qid = $1 AND pos > (SELECT dropped FROM counts WHERE qid = $1) ORDER BY pos LIMIT $2;

-- name: log_length: how many events were ever written to a queue's log
SELECT logged FROM counts WHERE qid = $1;

-- name: slowest_reader: the position of the slowest registered reader
SELECT min(pos) FROM readers WHERE qid = $1;

-- name: trim_log: drop the entries of a queue's log up to a position
UPDATE counts SET dropped = $2, trimmed = $3 WHERE qid = $1 AND dropped < $2;
