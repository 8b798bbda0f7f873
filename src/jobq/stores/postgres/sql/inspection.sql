-- What `jq-ctl status --verbose` shows. Bloat is an estimate: a new B-tree page is filled to 90 %, and
-- an entry has a head of 8 bytes, a pointer of 4 bytes, and its columns.

-- name: server: the version, and how many connections are in use
SELECT current_setting('server_version'), (SELECT count(*) FROM pg_stat_activity
    WHERE backend_type = 'client backend'), current_setting('max_connections')::bigint;

-- name: oldest: the transaction whose snapshot is the oldest; others' are visible to pg_monitor
SELECT extract(epoch FROM clock_timestamp() - xact_start)::float8,
    format('session %s of %s (%s, %s)', pid, usename, coalesce(nullif(application_name, ''), '?'),
        state)
FROM pg_stat_activity
WHERE xact_start IS NOT NULL AND pid <> pg_backend_pid() AND backend_type = 'client backend'
UNION ALL
SELECT extract(epoch FROM clock_timestamp() - prepared)::float8,
    format('prepared transaction %s of %s', gid, owner)
FROM pg_prepared_xacts
ORDER BY 1 DESC LIMIT 1;

-- name: replication_slots: those that keep dead rows of tables, or replicas that ask for it
SELECT format('replication slot %s', slot_name), age(xmin)::bigint
FROM pg_replication_slots WHERE xmin IS NOT NULL ORDER BY 2 DESC LIMIT 1;

-- name: tables: sizes and statistics of tables, with their partitions added up
SELECT root.relname::text, sum(greatest(c.reltuples, s.n_live_tup, 0))::bigint,
    sum(s.n_dead_tup)::bigint, sum(pg_table_size(c.oid))::bigint,
    sum(pg_indexes_size(c.oid))::bigint,
    (extract(epoch FROM max(greatest(s.last_vacuum, s.last_autovacuum))) * 1000)::bigint
FROM pg_class c JOIN pg_stat_all_tables s ON s.relid = c.oid
CROSS JOIN LATERAL (
    SELECT p.relname FROM pg_class p
    WHERE p.oid = CASE WHEN c.relispartition AND c.relname !~ '^jobs_'
        THEN (SELECT inhparent FROM pg_inherits WHERE inhrelid = c.oid) ELSE c.oid END
) root
WHERE c.relnamespace = to_regnamespace($1::text) AND c.relkind = 'r'
GROUP BY root.relname ORDER BY sum(pg_total_relation_size(c.oid)) DESC;

-- name: bloat: bytes that the indexes of each table have more than if they were new
SELECT root.relname::text,
    sum(greatest(0, x.relpages - ceil(x.reltuples * (12 + w.width) / (8152 * 0.9)) - 1))::bigint
    * current_setting('block_size')::bigint
FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid JOIN pg_class c ON c.oid = i.indrelid
CROSS JOIN LATERAL (
    SELECT p.relname FROM pg_class p
    WHERE p.oid = CASE WHEN c.relispartition AND c.relname !~ '^jobs_'
        THEN (SELECT inhparent FROM pg_inherits WHERE inhrelid = c.oid) ELSE c.oid END
) root
CROSS JOIN LATERAL (
    SELECT sum(ceil((coalesce(t.avg_width, 8) + 1) / 8.0) * 8) AS width
    FROM pg_attribute a
    LEFT JOIN pg_stats t ON t.schemaname = $1 AND t.tablename = c.relname AND t.attname = a.attname
    WHERE a.attrelid = c.oid AND a.attnum = ANY (i.indkey::smallint[])
) w
WHERE c.relnamespace = to_regnamespace($1::text) AND x.reltuples >= 0 AND c.relkind = 'r'
GROUP BY root.relname;
