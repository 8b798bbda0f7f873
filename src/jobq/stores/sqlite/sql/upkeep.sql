-- What the clock does, in bounded steps.

-- name: queues: all there are
SELECT * FROM queues;

-- name: past_retention: ended records whose time has come
SELECT pk, flags FROM jobs WHERE qid = ? AND state = ? AND keep = ? AND at_ms <= ? ORDER BY at_ms LIMIT ?;

-- name: beyond_count: ended records that may be trimmed, all but the newest ones; first to go first
SELECT pk, flags FROM jobs WHERE qid = ?1 AND state = ?2 AND keep = 0 AND at_ms IS NOT NULL
    AND (at_ms, pk) <= (SELECT at_ms, pk FROM jobs WHERE qid = ?1 AND state = ?2 AND keep = 0 AND at_ms IS NOT NULL
                        ORDER BY at_ms DESC, pk DESC LIMIT 1 OFFSET ?3)
ORDER BY at_ms LIMIT ?4;

-- name: sweep_minutes: a day is kept
DELETE FROM minutes WHERE minute < ?;

-- name: sweep_workers: silent for a day
DELETE FROM workers WHERE until_ms < ?;

-- name: sweep_calls: nobody repeats a call a day later
DELETE FROM calls WHERE at_ms < ?;

-- name: oldest_entries: of a queue's log
SELECT at - ?1 * 1099511627776, logged FROM events WHERE at > ?1 * 1099511627776 AND at < (?1 + 1) * 1099511627776 ORDER BY at LIMIT ?2;

-- name: slowest_reader: how far the slowest registered reader is
SELECT min(pos) FROM readers WHERE qid = ?;

-- name: trim_log: the oldest entries, up to a position
DELETE FROM events WHERE at > ?1 * 1099511627776 AND at <= ?1 * 1099511627776 + ?2;

-- name: entry_at: an entry of a queue's log
SELECT entry FROM events WHERE at = ?1 * 1099511627776 + ?2;

-- name: trimmed: the incarnation of the last entry that was trimmed
INSERT INTO meta VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value;
