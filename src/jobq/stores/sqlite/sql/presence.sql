-- Which workers there are, and who holds an office.

-- name: worker: who has the name now, and what was asked of it
SELECT record, wish FROM workers WHERE name = ? AND until_ms > ?;

-- name: beat: the worker is there
INSERT INTO workers (name, record, until_ms, wish) VALUES (?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET record = excluded.record, until_ms = excluded.until_ms, wish = excluded.wish;

-- name: fleet: how many workers are there
SELECT count(*) FROM workers WHERE until_ms > ?;

-- name: retire: it is gone
DELETE FROM workers WHERE name = ?;

-- name: forget_sleeper: it is not asleep
DELETE FROM sleepers WHERE worker = ?;

-- name: forget_call: it repeats none
DELETE FROM calls WHERE worker = ?;

-- name: workers: who is there
SELECT record FROM workers WHERE until_ms > ? ORDER BY name;

-- name: ask_worker: what it is to hear in its next beat
UPDATE workers SET wish = ? WHERE name = ? AND until_ms > ?;

-- name: lead: the office is free, or ours, or was given up
INSERT INTO offices VALUES (?1, ?2, ?3) ON CONFLICT (name) DO UPDATE SET who = excluded.who, until_ms = excluded.until_ms
    WHERE offices.who = excluded.who OR offices.until_ms <= ?4;
