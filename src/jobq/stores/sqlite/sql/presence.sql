-- Which workers there are, and which one leads.

-- name: worker: the worker that has a name now, and what an operator has asked of it
SELECT record, wish FROM workers WHERE name = ? AND until_ms > ?;

-- name: beat: write the record of a worker
INSERT INTO workers (name, record, until_ms, wish) VALUES (?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE
SET record = excluded.record, until_ms = excluded.until_ms, wish = excluded.wish;

-- name: fleet: how many workers there are
SELECT count(*) FROM workers WHERE until_ms > ?;

-- name: retire: delete a worker
DELETE FROM workers WHERE name = ?;

-- name: forget_sleeper: delete a worker's registrations as asleep
DELETE FROM sleepers WHERE worker = ?;

-- name: forget_call: delete a worker's last exchange
DELETE FROM calls WHERE worker = ?;

-- name: workers: all workers
SELECT record FROM workers WHERE until_ms > ? ORDER BY name;

-- name: ask_worker: store a request for the next beat of a worker
UPDATE workers SET wish = ? WHERE name = ? AND until_ms > ?;

-- name: lead: become or stay the leader, if nobody else is
INSERT INTO offices (name, who, until_ms) VALUES (?1, ?2, ?3)
ON CONFLICT (name) DO UPDATE SET who = excluded.who, until_ms = excluded.until_ms
WHERE offices.who = excluded.who OR offices.until_ms <= ?4;
