-- Statements of the load test (lab/load.py, ramp.py, producer.py): what it asks a server that is under load.

-- name: clock
select extract(epoch from clock_timestamp())::float8

-- name: newest
select coalesce(max(id), 0) from jobqueue.job

-- name: jobs_after
-- due is the instant at which the job was meant to arrive, so that a producer that falls behind hides nothing.
select (payload->>'due')::float8 as due, extract(epoch from created_at)::float8 as created,
  extract(epoch from started_at)::float8 as started, extract(epoch from finished_at)::float8 as finished
from jobqueue.job where id > %(id)s

-- name: unfinished
select count(*) from jobqueue.job where status in ('ready', 'running')

-- name: activity
-- Who of this database's sessions is at work at this moment, and what it waits for: NULL is the processor.
select case when application_name ~ '^fleet-.*/worker-' then 'worker'
            when starts_with(application_name, 'jobqueue load producer') then 'producer'
            when backend_type <> 'client backend' then 'server' else 'other' end as who,
  coalesce(wait_event_type, '') as wait_type, coalesce(wait_event, '') as wait, count(*)::int as sessions
from pg_stat_activity
where datname = current_database() and state = 'active' and pid <> pg_backend_pid()
group by 1, 2, 3

-- name: counters
-- WAL is the whole cluster's. A session that holds a snapshot keeps every row that died since from being vacuumed; the
-- load's own transactions are shorter than a second.
select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::float8 as wal_bytes,
  (select xact_commit from pg_stat_database where datname = current_database())::float8 as commits,
  coalesce((select n_dead_tup from pg_stat_user_tables where relid = 'jobqueue.job'::regclass), 0)::float8
    as dead_tuples,
  coalesce((select extract(epoch from clock_timestamp() - min(xact_start)) from pg_stat_activity
            where backend_xmin is not null and pid <> pg_backend_pid() and backend_type = 'client backend'),
           0)::float8 as horizon_seconds,
  (select count(*) from pg_stat_activity where backend_type = 'client backend')::float8 as sessions,
  (current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int)::float8
    as max_sessions

-- name: server
select current_setting('server_version') as version, current_setting('synchronous_commit') as synchronous_commit,
  current_setting('fsync') as fsync
