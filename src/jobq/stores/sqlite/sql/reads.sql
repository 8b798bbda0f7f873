-- Looking.

-- A listing goes through an index in sections (see reads._sections), and goes on behind a pair of its values.

-- name: page_waiting: of a plain queue, the back of the line first
SELECT {job} FROM jobs WHERE qid = :qid AND state = 2 AND key IS NULL AND (priority, -seq) > (:a, -:b)
ORDER BY priority, seq DESC LIMIT :n;

-- name: page_waiting_keyed: of a keyed queue, key by key
SELECT {job} FROM jobs WHERE qid = :qid AND state = 2 AND key IS NOT NULL AND key >= :a AND (key, pk) > (:a, :b) ORDER BY key, pk LIMIT :n;

-- name: page_timed: of any other state, the last to end by itself first
SELECT {job} FROM jobs WHERE qid = :qid AND state = :state AND keep = :keep AND at_ms <= :a AND (at_ms, pk) < (:a, :b) ORDER BY at_ms DESC, pk DESC LIMIT :n;

-- name: head: since when the next job of a plain queue has been due
SELECT due_ms FROM jobs WHERE qid = ? AND state = 2 AND key IS NULL ORDER BY priority DESC, seq LIMIT 1;

-- name: keyed_head: the same for the key whose turn it is
SELECT j.due_ms FROM jobs j WHERE j.qid = ?1 AND j.state = 2 AND j.key IS NOT NULL
    AND j.key = (SELECT key FROM keys WHERE qid = ?1 AND ready = 1 ORDER BY turn LIMIT 1) ORDER BY j.priority DESC, j.seq LIMIT 1;

-- name: minutes: figures from a minute on
SELECT minute, {figures} FROM minutes WHERE qid = ? AND minute >= ? ORDER BY minute;

-- name: queues_of: of a tenant, or all
SELECT {queue} FROM queues WHERE (? IS NULL OR tenant = ?) AND listed ORDER BY tenant, name;

-- name: entries: of a queue's log after a position
SELECT at - ?1 * 1099511627776, entry FROM events WHERE at > ?1 * 1099511627776 + ?2 AND at < (?1 + 1) * 1099511627776 ORDER BY at;

-- name: ack: a reader has got this far
INSERT INTO readers VALUES (?, ?, ?) ON CONFLICT (qid, reader) DO UPDATE SET pos = max(pos, excluded.pos);

-- name: readers: all that are registered, and how far they have got
SELECT reader, pos FROM readers WHERE qid = ? ORDER BY reader;

-- name: remove_reader: it will not come back
DELETE FROM readers WHERE qid = ? AND reader = ?;

-- name: reader: how far it has got
SELECT pos FROM readers WHERE qid = ? AND reader = ?;

-- name: trimmed: the incarnation of the last entry that was trimmed from a queue's log
SELECT value FROM meta WHERE name = ?;
