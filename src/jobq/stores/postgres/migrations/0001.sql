-- Schema version 1. A released migration never changes: add the next number instead.
-- One schema holds all tenants and queues. Times are milliseconds since the epoch. Text has the
-- collation "C": its order does not depend on the server's locale.

CREATE TABLE meta (name text COLLATE "C" PRIMARY KEY, value text NOT NULL);

-- Places in queues. One nextval gives a transaction a block of 2^20 places, so that producers need
-- no row lock to get places in order.
CREATE SEQUENCE places INCREMENT 1048576 MINVALUE 0 START 1048576;

-- What is declared for a queue and what holds it back. A transaction that changes more than single
-- plain jobs locks this row. Counters, metrics and log positions are in `counts`.
CREATE TABLE queues (
    qid       integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    tenant    text COLLATE "C" NOT NULL,
    name      text COLLATE "C" NOT NULL,
    mode      text,                             -- plain, keyed; NULL until the first job or declare
    paused    smallint NOT NULL DEFAULT 0,
    listed    smallint NOT NULL DEFAULT 1,      -- 0: obliterated, and kept only for its log
    held_ms   bigint NOT NULL DEFAULT 0,        -- no claims before this time (a rate limit or hold)
    rate      bytea,                            -- state of the queue's rate limit
    settings  bytea,                            -- limits, retention, … (settings.StoredSettings)
    reserved  integer NOT NULL DEFAULT 0,       -- places under max_waiting that flows have reserved
    plain     boolean NOT NULL DEFAULT false,   -- one statement may put, complete and claim here
    kept_ms   bigint,                           -- how long completed jobs are kept; NULL: forever
    UNIQUE (tenant, name)
) WITH (fillfactor = 50);                       -- keeps updates in the page: HOT, no index changes

-- One row per job. `state` is the code of core.records.event_log.STATES. An update that ends a job moves
-- its row to jobs_ended, so the table that claims read has no finished jobs.
CREATE SEQUENCE job_numbers;
CREATE TABLE jobs (
    pk           bigint NOT NULL DEFAULT nextval('job_numbers'),
    qid          integer NOT NULL,
    state        smallint NOT NULL,
    keep         smallint NOT NULL DEFAULT 0,   -- 1: ended, and not to be trimmed by count
    seq          bigint NOT NULL,               -- place inside the priority; a job that comes back
                                                -- keeps it
    at_ms        bigint,                        -- when the state ends by itself: due, ttl, lease,
                                                -- wait or retention
    created_ms   bigint NOT NULL,
    due_ms       bigint,
    started_ms   bigint,
    finished_ms  bigint,
    priority     integer NOT NULL,
    flags        integer NOT NULL,              -- rows.GIVEN, CANCEL, WATCHED, …
    life         integer NOT NULL,
    attempt      integer NOT NULL DEFAULT 0,
    failures     integer NOT NULL DEFAULT 0,
    stalls       integer NOT NULL DEFAULT 0,
    follows      smallint NOT NULL DEFAULT 0,   -- 1: blocked until the running keep_last job ended
    id           text COLLATE "C" NOT NULL,
    name         text COLLATE "C" NOT NULL,
    key          text COLLATE "C",
    worker       text COLLATE "C",
    token        text COLLATE "C",
    reason       text COLLATE "C",
    codec        text COLLATE "C" NOT NULL,
    options      bytea,                         -- what is seldom set (options.Options)
    failure      bytea,
    saved        bytea,
    progress     bytea,
    payload      bytea NOT NULL,
    result       bytea,
    saved_place  bigint NOT NULL DEFAULT 0      -- of `saved`: core/rules/outcomes.py, checkpoint_place
) PARTITION BY RANGE (state);
-- Vacuum comes ten times as early as by default. A claim reads past the index pages of jobs that
-- have started since: after 60,000 of 300,000 jobs, where the default is, 243 pages (0.4 ms) instead
-- of 24. Each update of a job changes an index, so none can stay in its page, and pages are full.
-- No claim reads ended jobs: for them the server's defaults are good.
CREATE TABLE jobs_hot PARTITION OF jobs FOR VALUES FROM (0) TO (4)
    WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000);
CREATE TABLE jobs_ended PARTITION OF jobs FOR VALUES FROM (4) TO (7);

CREATE UNIQUE INDEX jobs_hot_number ON jobs_hot (pk);
CREATE UNIQUE INDEX jobs_hot_identity ON jobs_hot (qid, id);
-- The queue. A claim reads its head: the cost is the batch, at any backlog.
CREATE INDEX jobs_hot_line ON jobs_hot (qid, priority DESC, seq) WHERE state = 2 AND key IS NULL;
CREATE INDEX jobs_hot_keyed_line ON jobs_hot (qid, key, priority DESC, seq)
    WHERE state = 2 AND key IS NOT NULL;
-- Whatever ends by the clock, exact and ordered: due jobs, expired leases and ttls, timeouts.
CREATE INDEX jobs_hot_clock ON jobs_hot (qid, state, at_ms, pk) WHERE at_ms IS NOT NULL;

CREATE UNIQUE INDEX jobs_ended_number ON jobs_ended (pk);
CREATE UNIQUE INDEX jobs_ended_identity ON jobs_ended (qid, id);
-- The queue is not its first column, because the planner knows nothing before the first ANALYZE: it
-- took this index for (qid, id), and a put read every ended job of its queue.
CREATE INDEX jobs_ended_clock ON jobs_ended (state, keep, qid, at_ms, pk);
-- Completed by a transaction of their handlers, and what follows is still to do (rows.UNFOLLOWED).
CREATE INDEX jobs_ended_unfollowed ON jobs_ended (finished_ms) WHERE flags & 1024 <> 0;

-- Keys of keyed queues that have jobs waiting or active; a key with neither has no row.
CREATE TABLE keys (
    kid            bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    qid            integer NOT NULL,
    key            text COLLATE "C" NOT NULL,
    waiting        integer NOT NULL,
    active         integer NOT NULL,
    turn           bigint NOT NULL,             -- round robin: the lowest turn is next
    ready          smallint NOT NULL,           -- 1: may start a job, 2: after its hold, 0: may not
    held_ms        bigint NOT NULL DEFAULT 0,   -- no claims before this time (a rate limit or hold)
    rate           bytea,
    rate_until_ms  bigint NOT NULL DEFAULT 0,   -- until then `rate` matters
    UNIQUE (qid, key)
) WITH (fillfactor = 70);
CREATE INDEX keys_ready ON keys (qid, turn) WHERE ready = 1;
CREATE INDEX keys_held ON keys (qid, held_ms) WHERE ready = 2;

-- Limits given to single keys at run time.
CREATE TABLE key_limits (
    qid     integer NOT NULL,
    key     text COLLATE "C" NOT NULL,
    n       integer,
    limits  bytea NOT NULL,
    PRIMARY KEY (qid, key)
);

-- Unique locks. `until_ms` NULL: until its job ends.
CREATE TABLE locks (
    qid       integer NOT NULL,
    lock      text COLLATE "C" NOT NULL,
    pk        bigint NOT NULL,
    until_ms  bigint,
    id        text COLLATE "C" NOT NULL,
    PRIMARY KEY (qid, lock)
);
CREATE INDEX locks_clock ON locks (until_ms) WHERE until_ms IS NOT NULL;

-- Holds: no job of the queue (key '') or of one key starts before a time. `ms` is the length that
-- was requested: after the clock was set back, the rest looks longer than that.
CREATE TABLE holds (
    qid       integer NOT NULL,
    key       text COLLATE "C" NOT NULL,
    until_ms  bigint NOT NULL,
    ms        bigint NOT NULL,
    PRIMARY KEY (qid, key)
);
CREATE INDEX holds_clock ON holds (qid, until_ms);

-- Which job waits for which. The child's end is copied here, so that its record may be deleted
-- before the parent runs.
CREATE TABLE edges (
    parent     bigint NOT NULL,                 -- pk
    ordinal    integer NOT NULL,
    child_qid  integer NOT NULL,
    data       smallint NOT NULL,
    done       smallint NOT NULL DEFAULT 0,
    child      text COLLATE "C" NOT NULL,       -- id
    codec      text COLLATE "C",
    asked      text COLLATE "C",                -- the id that the parent asked for, if another job
                                                -- held its unique lock
    result     bytea,
    failure    bytea,
    PRIMARY KEY (parent, ordinal)
);
CREATE INDEX edges_child ON edges (child_qid, child);
CREATE INDEX edges_open ON edges (parent) WHERE done = 0;

-- Signals that were received and not yet taken, per job.
CREATE TABLE signals (
    pk     bigint NOT NULL,
    n      integer NOT NULL,
    name   text COLLATE "C" NOT NULL,
    value  bytea NOT NULL,
    PRIMARY KEY (pk, n)
);

-- Log lines of each job.
CREATE TABLE logs (
    pk    bigint NOT NULL,
    n     integer NOT NULL,
    line  text NOT NULL,
    PRIMARY KEY (pk, n)
);

-- The last failed runs of each job (core.records.failures.MAX_ERRORS of them). A claim does not read them.
CREATE TABLE errors (
    pk       bigint NOT NULL,
    attempt  integer NOT NULL,
    failure  bytea NOT NULL,
    PRIMARY KEY (pk, attempt)
);

-- What the steps of each job have recorded (core/rules/waits.py), a row per step, so that steps which run
-- at the same time do not overwrite each other.
CREATE TABLE steps (
    pk    bigint NOT NULL,
    name  text COLLATE "C" NOT NULL,
    data  bytea NOT NULL,
    PRIMARY KEY (pk, name)
);

-- Flows that are being put, and their members; deleted if the flow is never completed.
CREATE TABLE flows (
    tenant    text COLLATE "C" NOT NULL,
    flow      text COLLATE "C" NOT NULL,
    begun_ms  bigint NOT NULL,
    done      smallint NOT NULL,
    PRIMARY KEY (tenant, flow)
);
CREATE INDEX flows_clock ON flows (begun_ms);
CREATE INDEX flows_left ON flows (done) WHERE done >= 2;
CREATE TABLE staged (
    tenant  text COLLATE "C" NOT NULL,
    flow    text COLLATE "C" NOT NULL,
    n       integer NOT NULL,
    weight  integer NOT NULL DEFAULT 1,         -- what it costs to make a job of the member
    place   smallint NOT NULL DEFAULT 0,        -- 1: the member has a place under max_waiting
    queue   text COLLATE "C" NOT NULL DEFAULT '',
    id      text COLLATE "C" NOT NULL DEFAULT '',
    spec    bytea NOT NULL,
    PRIMARY KEY (tenant, flow, n)
);
CREATE UNIQUE INDEX staged_identity ON staged (tenant, flow, queue, id) WHERE id != '';

CREATE TABLE schedules (
    qid         integer NOT NULL,
    id          text COLLATE "C" NOT NULL,
    spec        bytea NOT NULL,
    next_ms     bigint,
    fired       integer NOT NULL,
    last_ms     bigint,
    paused      smallint NOT NULL,
    created_ms  bigint NOT NULL,
    PRIMARY KEY (qid, id)
);
CREATE INDEX schedules_clock ON schedules (next_ms) WHERE next_ms IS NOT NULL AND paused = 0;

-- The event log: an entry per call, queue and worker. Entries are only ever inserted. They get
-- positions and numbers after their commit (numbering.py), and carry what the call changes of the
-- counters and metrics, so no call locks a row that others write.
-- `slot` is the hour of the entry modulo 8. Old slots are truncated as a whole; rows of them that
-- are still needed move to slot -1. The partitions are fixed, so jobq runs no DDL in production.
-- The target keeps entries up to a page in their row: compressed at 2 kB, as is the default, they
-- cost a busy queue 2 % of the server's time.
CREATE SEQUENCE entry_numbers;
CREATE TABLE entries (
    eid      bigint NOT NULL DEFAULT nextval('entry_numbers'),
    xid      xid8 NOT NULL DEFAULT pg_current_xact_id(),
    at_ms    bigint NOT NULL,
    qid      integer NOT NULL,
    n        integer NOT NULL,                  -- how many events it has; 0: it only counts
    slot     smallint NOT NULL
        DEFAULT ((extract(epoch FROM clock_timestamp())::bigint / 3600) % 8)::smallint,
    worker   text COLLATE "C",
    moved    integer[],                         -- changes of the seven counters, by state code
    figures  bigint[],                          -- changes of the figures of its minute
    items    bytea,                             -- the events as MessagePack (core.records.event_log)
    starts   bytea                              -- instead of items: the jobs that a claim started
) PARTITION BY LIST (slot);
CREATE TABLE entries_0 PARTITION OF entries FOR VALUES IN (0) WITH (toast_tuple_target = 8160);
CREATE TABLE entries_1 PARTITION OF entries FOR VALUES IN (1) WITH (toast_tuple_target = 8160);
CREATE TABLE entries_2 PARTITION OF entries FOR VALUES IN (2) WITH (toast_tuple_target = 8160);
CREATE TABLE entries_3 PARTITION OF entries FOR VALUES IN (3) WITH (toast_tuple_target = 8160);
CREATE TABLE entries_4 PARTITION OF entries FOR VALUES IN (4) WITH (toast_tuple_target = 8160);
CREATE TABLE entries_5 PARTITION OF entries FOR VALUES IN (5) WITH (toast_tuple_target = 8160);
CREATE TABLE entries_6 PARTITION OF entries FOR VALUES IN (6) WITH (toast_tuple_target = 8160);
CREATE TABLE entries_7 PARTITION OF entries FOR VALUES IN (7) WITH (toast_tuple_target = 8160);
CREATE TABLE entries_kept PARTITION OF entries FOR VALUES IN (-1) WITH (toast_tuple_target = 8160);
CREATE INDEX entries_number ON entries (eid);
CREATE INDEX entries_transaction ON entries (xid);

-- The positions and numbers of entries.
CREATE TABLE numbers (
    qid          integer NOT NULL,
    slot         smallint NOT NULL,             -- of the entry
    n            integer NOT NULL,              -- how many events the entry has
    pos          bigint NOT NULL,               -- dense
    number       bigint NOT NULL,               -- of its first event
    eid          bigint NOT NULL,
    incarnation  text COLLATE "C" NOT NULL
) PARTITION BY LIST (slot);
CREATE TABLE numbers_0 PARTITION OF numbers FOR VALUES IN (0);
CREATE TABLE numbers_1 PARTITION OF numbers FOR VALUES IN (1);
CREATE TABLE numbers_2 PARTITION OF numbers FOR VALUES IN (2);
CREATE TABLE numbers_3 PARTITION OF numbers FOR VALUES IN (3);
CREATE TABLE numbers_4 PARTITION OF numbers FOR VALUES IN (4);
CREATE TABLE numbers_5 PARTITION OF numbers FOR VALUES IN (5);
CREATE TABLE numbers_6 PARTITION OF numbers FOR VALUES IN (6);
CREATE TABLE numbers_7 PARTITION OF numbers FOR VALUES IN (7);
CREATE TABLE numbers_kept PARTITION OF numbers FOR VALUES IN (-1);
CREATE INDEX numbers_position ON numbers (qid, pos);

-- How far the numbering is: all entries of transactions that `snapshot` sees have numbers. After a
-- pass that was too large for one transaction, so have those that `target` sees, up to `upto`.
CREATE TABLE numbering (
    snapshot  pg_snapshot NOT NULL,
    target    pg_snapshot,
    upto      bigint NOT NULL DEFAULT 0         -- eid
) WITH (fillfactor = 10);
INSERT INTO numbering (snapshot) VALUES ('1:1:');

-- Per queue: the counters, the last position and number of its log, and what was dropped of it.
-- The counters include the entries that have numbers; the others are added by each reader.
CREATE TABLE counts (
    qid          integer PRIMARY KEY,
    pos          bigint NOT NULL DEFAULT 0,     -- the last entry of its log
    logged       bigint NOT NULL DEFAULT 0,     -- events ever written to it
    dropped      bigint NOT NULL DEFAULT 0,     -- entries up to this position are dropped
    trimmed      text,                          -- the incarnation of the last dropped entry
    n_delayed    bigint NOT NULL DEFAULT 0,
    n_blocked    bigint NOT NULL DEFAULT 0,
    n_waiting    bigint NOT NULL DEFAULT 0,
    n_active     bigint NOT NULL DEFAULT 0,
    n_completed  bigint NOT NULL DEFAULT 0,
    n_failed     bigint NOT NULL DEFAULT 0,
    n_cancelled  bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 10);

CREATE TABLE minutes (
    qid        integer NOT NULL,
    minute     bigint NOT NULL,
    accepted   bigint NOT NULL,
    started    bigint NOT NULL,
    completed  bigint NOT NULL,
    failed     bigint NOT NULL,
    cancelled  bigint NOT NULL,
    retried    bigint NOT NULL,
    stalled    bigint NOT NULL,
    wait_ms    bigint NOT NULL,
    run_ms     bigint NOT NULL,
    PRIMARY KEY (qid, minute)
) WITH (fillfactor = 50);

CREATE TABLE readers (
    qid     integer NOT NULL,
    reader  text COLLATE "C" NOT NULL,
    pos     bigint NOT NULL,
    PRIMARY KEY (qid, reader)
);

-- Workers, by their last heartbeat.
CREATE TABLE workers (
    name      text COLLATE "C" PRIMARY KEY,
    record    bytea NOT NULL,
    until_ms  bigint NOT NULL,
    wish      text
) WITH (fillfactor = 50);

-- Exchanges of workers, in case a reply is lost. Only ever inserted and swept: one row per worker
-- that every call updates would have a version per call while another transaction holds a snapshot.
CREATE TABLE calls (
    caller  text COLLATE "C" NOT NULL,
    call    text COLLATE "C" NOT NULL,
    at_ms   bigint NOT NULL,
    stale   bytea,
    PRIMARY KEY (caller, call)
);
CREATE INDEX calls_clock ON calls (at_ms);

-- Who to wake, at which mailbox: workers that found nothing, and listeners to a topic. A crash of
-- the server empties these tables. Nothing depends on them: workers and listeners also look at
-- long intervals.
CREATE UNLOGGED TABLE sleepers (
    qid       integer NOT NULL,
    worker    text COLLATE "C" NOT NULL,
    mailbox   text COLLATE "C" NOT NULL,
    slots     integer NOT NULL,
    since_ms  bigint NOT NULL,
    -- The call that wakes the worker keeps the row. While another transaction holds a snapshot, a
    -- deleted row would stay in the table, and all later calls would read past it.
    stays     boolean NOT NULL DEFAULT false,
    PRIMARY KEY (qid, worker)
);
CREATE INDEX sleepers_worker ON sleepers (worker);
-- The last to fall asleep come first: calls do not read past the dead rows of earlier ones.
CREATE INDEX sleepers_since ON sleepers (qid, since_ms);
CREATE UNLOGGED TABLE listeners (
    topic     text COLLATE "C" NOT NULL,
    mailbox   text COLLATE "C" NOT NULL,
    until_ms  bigint NOT NULL,
    PRIMARY KEY (topic, mailbox)
);
CREATE INDEX listeners_mailbox ON listeners (mailbox);

-- What the leader has found out while another transaction holds a snapshot (snapshots.py). Only ever
-- inserted meanwhile; the newest row counts.
CREATE TABLE looks (
    made    timestamptz PRIMARY KEY DEFAULT clock_timestamp(),
    blocks  jsonb NOT NULL                      -- [[qid, priority, block of places], …] where the
                                                -- first jobs wait
);

CREATE TABLE offices (
    name      text COLLATE "C" PRIMARY KEY,
    who       text COLLATE "C" NOT NULL,
    until_ms  bigint NOT NULL
) WITH (fillfactor = 50);

-- If the database publishes its tables (a logical replica, an upgrade, change data capture),
-- PostgreSQL refuses to change rows that nothing identifies. All other tables have primary keys.
-- FULL costs nothing without wal_level = logical; with it, the deleted rows are logged as a whole.
ALTER TABLE jobs_hot REPLICA IDENTITY USING INDEX jobs_hot_number;
ALTER TABLE jobs_ended REPLICA IDENTITY USING INDEX jobs_ended_number;
ALTER TABLE numbering REPLICA IDENTITY FULL;
ALTER TABLE entries_0 REPLICA IDENTITY FULL;
ALTER TABLE entries_1 REPLICA IDENTITY FULL;
ALTER TABLE entries_2 REPLICA IDENTITY FULL;
ALTER TABLE entries_3 REPLICA IDENTITY FULL;
ALTER TABLE entries_4 REPLICA IDENTITY FULL;
ALTER TABLE entries_5 REPLICA IDENTITY FULL;
ALTER TABLE entries_6 REPLICA IDENTITY FULL;
ALTER TABLE entries_7 REPLICA IDENTITY FULL;
ALTER TABLE entries_kept REPLICA IDENTITY FULL;
ALTER TABLE numbers_0 REPLICA IDENTITY FULL;
ALTER TABLE numbers_1 REPLICA IDENTITY FULL;
ALTER TABLE numbers_2 REPLICA IDENTITY FULL;
ALTER TABLE numbers_3 REPLICA IDENTITY FULL;
ALTER TABLE numbers_4 REPLICA IDENTITY FULL;
ALTER TABLE numbers_5 REPLICA IDENTITY FULL;
ALTER TABLE numbers_6 REPLICA IDENTITY FULL;
ALTER TABLE numbers_7 REPLICA IDENTITY FULL;
ALTER TABLE numbers_kept REPLICA IDENTITY FULL;
