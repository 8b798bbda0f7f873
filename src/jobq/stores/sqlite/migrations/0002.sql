-- Schema version 2.

-- The event log as a table by integer key: `at` is qid * 2^40 + pos. As a WITHOUT ROWID table,
-- every entry of more than 488 bytes took an overflow page of its own (5 jobs per call: 16.4 MB for
-- 7.9 MB of entries; 12.4 MB now).
CREATE TABLE events_by_place (
    at      INTEGER PRIMARY KEY,
    logged  INTEGER NOT NULL,   -- events of the log up to here: its length is limited by events
    entry   BLOB NOT NULL
);
INSERT INTO events_by_place
SELECT qid * 1099511627776 + pos, logged, entry FROM events ORDER BY qid, pos;
DROP TABLE events;
ALTER TABLE events_by_place RENAME TO events;

-- Places under max_waiting that incomplete flows have reserved (see put.py). `place` 1: the
-- member has one. A member is staged once, also when its call is repeated.
ALTER TABLE queues ADD COLUMN reserved INTEGER NOT NULL DEFAULT 0;
ALTER TABLE staged ADD COLUMN queue TEXT NOT NULL DEFAULT '';
ALTER TABLE staged ADD COLUMN id TEXT NOT NULL DEFAULT '';
ALTER TABLE staged ADD COLUMN place INTEGER NOT NULL DEFAULT 0;
CREATE UNIQUE INDEX staged_identity ON staged (tenant, flow, queue, id) WHERE id != '';

-- Flows that are submitted by several transactions (see submission.py). `weight` is what it costs
-- to make a job of a member. Ticks find old flows, and those that a caller has left, by an index.
ALTER TABLE staged ADD COLUMN weight INTEGER NOT NULL DEFAULT 1;
CREATE INDEX flows_clock ON flows (begun_ms);
CREATE INDEX flows_left ON flows (done) WHERE done >= 2;

-- Holds: no job of the queue (key '') or of one key starts before a time. `ms` is the length that
-- was requested: after the clock was set back, the rest looks longer than that.
CREATE TABLE holds (
    qid       INTEGER NOT NULL,
    key       TEXT NOT NULL,
    until_ms  INTEGER NOT NULL,
    ms        INTEGER NOT NULL,
    PRIMARY KEY (qid, key)
) WITHOUT ROWID;
CREATE INDEX holds_clock ON holds (qid, until_ms);

-- The last failed runs of each job (core.records.failures.MAX_ERRORS of them). They are not in the job's
-- row, because a claim reads that and needs none of them.
CREATE TABLE errors (
    pk       INTEGER NOT NULL,
    attempt  INTEGER NOT NULL,
    failure  BLOB NOT NULL,
    PRIMARY KEY (pk, attempt)
) WITHOUT ROWID;

-- A lock also stores the id of its job. A throttle outlives the record of its job, and the row's
-- number may be used for another job then.
ALTER TABLE locks ADD COLUMN id TEXT NOT NULL DEFAULT '';
UPDATE locks SET id = ifnull((SELECT id FROM jobs WHERE jobs.pk = locks.pk), '');

-- What the steps of each job have recorded (core/rules/waits.py), a row per step, so that steps which run
-- at the same time do not overwrite each other.
CREATE TABLE steps (
    pk    INTEGER NOT NULL,
    name  TEXT NOT NULL,
    data  BLOB NOT NULL,
    PRIMARY KEY (pk, name)
) WITHOUT ROWID;

-- Which of a job's checkpoints `saved` is: core/rules/outcomes.py, checkpoint_place.
ALTER TABLE jobs ADD COLUMN saved_place INTEGER NOT NULL DEFAULT 0;
