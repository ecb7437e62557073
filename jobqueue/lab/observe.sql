-- What the live pictures ask, some times a second, on an autocommit connection of their own: each look is a statement.

-- name: sample
-- One pass over the jobs. A job is waiting for its retry while it has begun an attempt and its run_at lies ahead.
select extract(epoch from jobqueue.now())::float8 as at,
  count(*) filter (where status = 'ready' and not (attempts > 0 and run_at > jobqueue.now())) as ready,
  count(*) filter (where status = 'ready' and run_at <= jobqueue.now()) as due,
  count(*) filter (where status = 'ready' and attempts > 0 and run_at > jobqueue.now()) as waiting_retry,
  count(*) filter (where status = 'running') as running,
  count(*) filter (where status in ('dead', 'failed')) as dead,
  count(*) filter (where status = 'done') + (select count(*) from jobqueue.job_archive where status = 'done') as done,
  greatest(0, extract(epoch from jobqueue.now()
    - min(run_at) filter (where status = 'ready' and run_at <= jobqueue.now())))::float8 as oldest_age_seconds
from jobqueue.job

-- name: leases
-- Every lease that is out.
select id, type, epoch, attempts as attempt, locked_by as owner, extract(epoch from started_at)::float8 as started,
  extract(epoch from locked_until - jobqueue.now())::float8 as left_seconds
from jobqueue.job where status = 'running' order by id limit %(most)s

-- name: ends
-- Leases that ended after an instant: done ones are rows, the others stand in their row's history, without a start.
select id, type, finished_epoch as epoch, finished_by as owner, extract(epoch from started_at)::float8 as started,
  extract(epoch from finished_at)::float8 as ended, 'done' as outcome, attempts as attempt
from jobqueue.job where status = 'done' and finished_at > to_timestamp(%(since)s)
union all
select job.id, job.type, (entry->>'epoch')::bigint, entry->>'owner', null,
  extract(epoch from (entry->>'at')::timestamptz)::float8, entry->>'event', null
from jobqueue.job, jsonb_array_elements(history) as entry
where history <> '[]' and entry->>'owner' is not null and (entry->>'at')::timestamptz > to_timestamp(%(since)s)
order by 6 limit %(most)s

-- name: heard
-- When a session of each owner last did anything; a worker's sessions carry its owner as their name.
select application_name as owner, extract(epoch from clock_timestamp() - max(state_change))::float8 as seconds
from pg_stat_activity where application_name = any(%(owners)s) group by application_name

-- name: be_brief
set statement_timeout = '5s'

-- name: server_version
show server_version

-- name: clock
select extract(epoch from jobqueue.now())::float8
