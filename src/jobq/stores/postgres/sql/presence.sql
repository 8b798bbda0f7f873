-- Which workers there are, and which one leads.

-- name: worker: the worker that has a name now, and what an operator has asked of it
SELECT record, wish FROM workers WHERE name = $1 AND until_ms > $2;

-- name: beat: write the record of a worker
INSERT INTO workers (name, record, until_ms, wish) VALUES ($1, $2, $3, $4)
ON CONFLICT (name) DO UPDATE
SET record = excluded.record, until_ms = excluded.until_ms, wish = excluded.wish;

-- name: fleet: how many workers there are
SELECT count(*) FROM workers WHERE until_ms > $1;

-- name: retire: delete a worker
DELETE FROM workers WHERE name = $1;

-- name: forget_sleeper: delete a worker's registrations as asleep
DELETE FROM sleepers WHERE worker = $1;

-- name: forget_call: delete a worker's exchanges
DELETE FROM calls WHERE caller = $1;

-- name: workers: all workers
SELECT record FROM workers WHERE until_ms > $1 ORDER BY name;

-- name: ask_worker: store a request for the next beat of a worker
UPDATE workers SET wish = $1 WHERE name = $2 AND until_ms > $3;

-- name: lead: become or stay the leader, if nobody else is
INSERT INTO offices (name, who, until_ms) VALUES ($1, $2, $3)
ON CONFLICT (name) DO UPDATE SET who = excluded.who, until_ms = excluded.until_ms
WHERE offices.who = excluded.who OR offices.until_ms <= $4;
