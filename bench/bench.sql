-- Statements of the measurements, by name; %(n)s is a number of rows.

-- What each contender has not finished yet. Ours only of what came after a job, by the primary key: among a million
-- other rows a scan takes so long that it would be taken for a late completion.
-- name: ours_pending
select count(*) from jobqueue.job where id > %(since)s and status in ('ready', 'running');

-- name: last_job
select coalesce(max(id), 0) from jobqueue.job;

-- name: pgqueuer_pending
select count(*) from pgqueuer where status in ('queued', 'picked');

-- name: chancy_pending
select count(*) from chancy_jobs where state in ('pending', 'running', 'retrying');

-- name: procrastinate_pending
select count(*) from procrastinate_jobs where status in ('todo', 'doing');

-- name: dbos_pending
select count(*) from dbos.workflow_status where status in ('ENQUEUED', 'PENDING');

-- name: graphile_pending
select count(*) from graphile_worker._private_jobs where attempts < max_attempts;

-- name: pgboss_pending
select count(*) from pgboss.job where name = 'bench' and state in ('created', 'retry', 'active');

-- A million rows that should cost a claim nothing, of three kinds.
-- name: finished_rows
insert into jobqueue.job (type, payload, status, attempts, epoch, started_at, finished_at, finished_epoch, finished_by)
select 'noop', '{"n": 1}', 'done', 1, 1, jobqueue.now(), jobqueue.now(), 1, 'bench' from generate_series(1, %(n)s);

-- name: future_rows
insert into jobqueue.job (type, payload, run_at)
select 'noop', '{"n": 1}', jobqueue.now() + interval '1 day' from generate_series(1, %(n)s);

-- name: due_rows
insert into jobqueue.job (type, payload) select 'other', '{"n": 1}' from generate_series(1, %(n)s);

-- What a drain that met its time limit has left, before the next one in the same database.
-- name: clear_rows
delete from jobqueue.job where type = 'noop' and status in ('ready', 'running') and run_at <= jobqueue.now();

-- Without it some peers' plans scan the whole table until autovacuum comes, within a minute.
-- name: settle
vacuum (analyze);

-- name: analyze
analyze;

-- name: checkpoint
checkpoint;

-- An old snapshot, as a forgotten transaction or a long report holds it: no row version that dies is removed.
-- name: hold_snapshot
begin isolation level repeatable read;

-- name: look
select pg_catalog.txid_current();

-- name: settings
select name, setting from pg_catalog.pg_settings
where name in ('fsync', 'synchronous_commit', 'full_page_writes', 'shared_buffers', 'max_wal_size', 'wal_level',
               'autovacuum', 'server_version') order by name;

-- name: count_statements
create extension if not exists pg_stat_statements;

-- name: statements_counted
select coalesce(sum(calls), 0)::bigint from pg_stat_statements
where dbid = (select oid from pg_catalog.pg_database where datname = %(name)s);

-- When each completion was committed: the instant of its commit record, to which the flush of the log is added.
-- name: committed
select id, finished_epoch, pg_catalog.pg_xact_commit_timestamp(xmin) from jobqueue.job where status = 'done';

-- name: unfinished
select count(*) from jobqueue.job where status in ('ready', 'running');
