-- Schema version 2.

-- The event log as a table by integer key: `at` is qid * 2^40 + pos. As a WITHOUT ROWID table every entry of more than 488 bytes
-- took an overflow page of its own (5 jobs per call: 16.4 MB for 7.9 MB of entries; 12.4 MB now).
CREATE TABLE events_by_place (
    at      INTEGER PRIMARY KEY,
    logged  INTEGER NOT NULL,                   -- events of the log up to here: it is bounded by events, not by entries
    entry   BLOB NOT NULL
);
INSERT INTO events_by_place SELECT qid * 1099511627776 + pos, logged, entry FROM events ORDER BY qid, pos;
DROP TABLE events;
ALTER TABLE events_by_place RENAME TO events;
