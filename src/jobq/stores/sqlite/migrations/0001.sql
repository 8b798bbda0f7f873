-- Schema version 1, as released with 0.1. A released migration never changes: add the next number instead.
-- One file holds all tenants and queues. Times are milliseconds since the epoch.

CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

-- One row per queue, which every transaction on it reads and writes once: what is declared, what stands in its way,
-- counters (n_<state>) that move with the jobs, and the figures of the running minute.
CREATE TABLE queues (
    qid          INTEGER PRIMARY KEY,
    tenant       TEXT NOT NULL,
    name         TEXT NOT NULL,
    mode         TEXT,                          -- plain, keyed; NULL until the first job or a declaration
    paused       INTEGER NOT NULL DEFAULT 0,
    listed       INTEGER NOT NULL DEFAULT 1,    -- 0: obliterated, and kept only for its log
    asleep       INTEGER NOT NULL DEFAULT 0,    -- 1: there may be sleepers to wake
    heard        INTEGER NOT NULL DEFAULT 0,    -- 1: there may be listeners to its log
    seq          INTEGER NOT NULL DEFAULT 0,    -- the last place given in line, and the last turn given to a key
    pos          INTEGER NOT NULL DEFAULT 0,    -- the last entry of its log
    logged       INTEGER NOT NULL DEFAULT 0,    -- events ever written to it
    held_ms      INTEGER NOT NULL DEFAULT 0,    -- no claims before this time (a rate limit)
    rate         BLOB,                          -- state of the queue's rate limit
    settings     BLOB,                          -- limits, retention, dead letters (settings.Settings)
    n_delayed    INTEGER NOT NULL DEFAULT 0,
    n_blocked    INTEGER NOT NULL DEFAULT 0,
    n_waiting    INTEGER NOT NULL DEFAULT 0,
    n_active     INTEGER NOT NULL DEFAULT 0,
    n_completed  INTEGER NOT NULL DEFAULT 0,
    n_failed     INTEGER NOT NULL DEFAULT 0,
    n_cancelled  INTEGER NOT NULL DEFAULT 0,
    minute       INTEGER NOT NULL DEFAULT 0,    -- the minute of these figures; past ones are in minutes
    m_accepted   INTEGER NOT NULL DEFAULT 0,
    m_started    INTEGER NOT NULL DEFAULT 0,
    m_completed  INTEGER NOT NULL DEFAULT 0,
    m_failed     INTEGER NOT NULL DEFAULT 0,
    m_cancelled  INTEGER NOT NULL DEFAULT 0,
    m_retried    INTEGER NOT NULL DEFAULT 0,
    m_stalled    INTEGER NOT NULL DEFAULT 0,
    m_wait_ms    INTEGER NOT NULL DEFAULT 0,
    m_run_ms     INTEGER NOT NULL DEFAULT 0,
    UNIQUE (tenant, name)
);

-- One row per job. `state` is the code of core.events.STATES.
CREATE TABLE jobs (
    pk           INTEGER PRIMARY KEY,
    qid          INTEGER NOT NULL,
    id           TEXT NOT NULL,
    state        INTEGER NOT NULL,
    priority     INTEGER NOT NULL,
    seq          INTEGER NOT NULL,              -- place in line inside the priority; a job that comes back keeps it
    at_ms        INTEGER,                       -- when the state ends by itself: due, ttl, lease, wait or retention
    keep         INTEGER NOT NULL,              -- 1: ended, and not to be trimmed by count
    key          TEXT,
    flags        INTEGER NOT NULL,              -- rows.GIVEN, CANCEL, WATCHED, …
    name         TEXT NOT NULL,
    life         INTEGER NOT NULL,
    attempt      INTEGER NOT NULL,
    failures     INTEGER NOT NULL,
    stalls       INTEGER NOT NULL,
    created_ms   INTEGER NOT NULL,
    due_ms       INTEGER,
    started_ms   INTEGER,
    finished_ms  INTEGER,
    worker       TEXT,
    token        TEXT,
    follows      INTEGER NOT NULL,              -- 1: blocked until the keep_last job that runs has ended
    codec        TEXT NOT NULL,
    options      BLOB,                          -- what is seldom set (rows.Options); NULL: all defaults
    failure      BLOB,
    reason       TEXT,
    saved        BLOB,
    progress     BLOB,
    payload      BLOB NOT NULL,
    result       BLOB
);

CREATE UNIQUE INDEX jobs_identity ON jobs (qid, id);
-- The line. A claim reads its head: the cost is the batch, at any backlog.
CREATE INDEX jobs_line ON jobs (qid, priority DESC, seq) WHERE state = 2 AND key IS NULL;
CREATE INDEX jobs_keyed_line ON jobs (qid, key, priority DESC, seq) WHERE state = 2 AND key IS NOT NULL;
-- Whatever ends by the clock, exact and ordered: due jobs, expired leases and ttls, records past retention.
CREATE INDEX jobs_clock ON jobs (qid, state, keep, at_ms) WHERE at_ms IS NOT NULL;

-- Keys of keyed queues that have jobs waiting or active; a key with neither has no row. With a rowid: keys then lie in the order
-- they came in, which is about the order of their turns, so that a claim changes few pages and not one for each key.
CREATE TABLE keys (
    qid      INTEGER NOT NULL,
    key      TEXT NOT NULL,
    waiting  INTEGER NOT NULL,
    active   INTEGER NOT NULL,
    turn     INTEGER NOT NULL,                  -- round robin: the lowest turn is next
    ready    INTEGER NOT NULL,                  -- has waiting jobs and room under its limit
    held_ms  INTEGER NOT NULL DEFAULT 0,        -- no claims before this time (a rate limit)
    rate     BLOB,
    rate_until_ms INTEGER NOT NULL DEFAULT 0,   -- until then `rate` matters
    PRIMARY KEY (qid, key)
);
CREATE INDEX keys_ready ON keys (qid, turn) WHERE ready = 1;
CREATE INDEX keys_held ON keys (qid, held_ms) WHERE ready = 2;

-- Limits given to single keys at run time.
CREATE TABLE key_limits (qid INTEGER NOT NULL, key TEXT NOT NULL, n INTEGER, limits BLOB NOT NULL, PRIMARY KEY (qid, key)) WITHOUT ROWID;

-- Unique locks. `until_ms` NULL: until its job ends.
CREATE TABLE locks (qid INTEGER NOT NULL, lock TEXT NOT NULL, pk INTEGER NOT NULL, until_ms INTEGER, PRIMARY KEY (qid, lock)) WITHOUT ROWID;
CREATE INDEX locks_clock ON locks (until_ms) WHERE until_ms IS NOT NULL;

-- Who waits for whom. The child's end is copied here, so that its record may go before the parent runs.
CREATE TABLE edges (
    parent     INTEGER NOT NULL,                -- pk
    ordinal    INTEGER NOT NULL,
    child_qid  INTEGER NOT NULL,
    child      TEXT NOT NULL,                   -- id
    data       INTEGER NOT NULL,
    done       INTEGER NOT NULL DEFAULT 0,
    result     BLOB,
    codec      TEXT,
    failure    BLOB,
    asked      TEXT,                            -- the id it is waited for as, where that is another: a unique lock was held
    PRIMARY KEY (parent, ordinal)
) WITHOUT ROWID;
CREATE INDEX edges_child ON edges (child_qid, child);
-- What a parent still waits for. Not a counter in its row: that would be written whole, with a payload that names all its children.
CREATE INDEX edges_open ON edges (parent) WHERE done = 0;

-- Signals received and not yet taken, per job.
CREATE TABLE signals (pk INTEGER NOT NULL, n INTEGER NOT NULL, name TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (pk, n)) WITHOUT ROWID;

-- Flows in the making; swept when never finished.
CREATE TABLE flows (tenant TEXT NOT NULL, flow TEXT NOT NULL, begun_ms INTEGER NOT NULL, done INTEGER NOT NULL, PRIMARY KEY (tenant, flow)) WITHOUT ROWID;
CREATE TABLE staged (tenant TEXT NOT NULL, flow TEXT NOT NULL, n INTEGER NOT NULL, spec BLOB NOT NULL, PRIMARY KEY (tenant, flow, n)) WITHOUT ROWID;

CREATE TABLE schedules (
    qid         INTEGER NOT NULL,
    id          TEXT NOT NULL,
    spec        BLOB NOT NULL,
    meta        TEXT NOT NULL,                  -- the parts that SQL looks at, as JSON
    next_ms     INTEGER,
    fired       INTEGER NOT NULL,
    last_ms     INTEGER,
    paused      INTEGER NOT NULL,
    created_ms  INTEGER NOT NULL,
    PRIMARY KEY (qid, id)
) WITHOUT ROWID;
CREATE INDEX schedules_clock ON schedules (next_ms) WHERE next_ms IS NOT NULL AND paused = 0;

CREATE TABLE logs (pk INTEGER NOT NULL, n INTEGER NOT NULL, line TEXT NOT NULL, PRIMARY KEY (pk, n)) WITHOUT ROWID;

-- The event log: an entry per call and queue, packed by core.events.
CREATE TABLE events (
    qid     INTEGER NOT NULL,
    pos     INTEGER NOT NULL,                   -- dense
    logged  INTEGER NOT NULL,                   -- events of the log up to here: it is bounded by events, not by entries
    entry   BLOB NOT NULL,
    PRIMARY KEY (qid, pos)
) WITHOUT ROWID;
CREATE TABLE readers (qid INTEGER NOT NULL, reader TEXT NOT NULL, pos INTEGER NOT NULL, PRIMARY KEY (qid, reader)) WITHOUT ROWID;

CREATE TABLE minutes (
    qid INTEGER NOT NULL, minute INTEGER NOT NULL,
    accepted INTEGER NOT NULL, started INTEGER NOT NULL, completed INTEGER NOT NULL, failed INTEGER NOT NULL, cancelled INTEGER NOT NULL,
    retried INTEGER NOT NULL, stalled INTEGER NOT NULL, wait_ms INTEGER NOT NULL, run_ms INTEGER NOT NULL,
    PRIMARY KEY (qid, minute)
) WITHOUT ROWID;

-- Workers: as they last said they were, and the last exchange of each, for when its reply was lost.
CREATE TABLE workers (name TEXT PRIMARY KEY, record BLOB NOT NULL, until_ms INTEGER NOT NULL, wish TEXT) WITHOUT ROWID;
CREATE TABLE calls (worker TEXT PRIMARY KEY, call TEXT NOT NULL, at_ms INTEGER NOT NULL, stale BLOB) WITHOUT ROWID;

-- Who to wake, at which mailbox: workers that found nothing, and listeners to a topic.
CREATE TABLE sleepers (qid INTEGER NOT NULL, worker TEXT NOT NULL, port INTEGER NOT NULL, pid INTEGER NOT NULL, slots INTEGER NOT NULL, since_ms INTEGER NOT NULL,
    PRIMARY KEY (qid, worker)) WITHOUT ROWID;
CREATE INDEX sleepers_worker ON sleepers (worker);
CREATE TABLE listeners (topic TEXT NOT NULL, port INTEGER NOT NULL, pid INTEGER NOT NULL, until_ms INTEGER NOT NULL, PRIMARY KEY (topic, port)) WITHOUT ROWID;

CREATE TABLE offices (name TEXT PRIMARY KEY, who TEXT NOT NULL, until_ms INTEGER NOT NULL) WITHOUT ROWID;
