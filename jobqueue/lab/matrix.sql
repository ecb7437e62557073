-- The queries of the failure matrix: each is meant to be pasted into psql, with the job's id (or name) in its place.

-- name: row
select id, status, attempts, max_attempts, run_at, locked_by, epoch, locked_until, last_error
from jobqueue.job where id = %(id)s

-- name: due
select id, status, run_at <= jobqueue.now() as due, attempts, max_attempts from jobqueue.job where id = %(id)s

-- name: lease
select id, locked_by, epoch, locked_until > jobqueue.now() as in_force, attempts from jobqueue.job where id = %(id)s

-- name: ends
select h ->> 'event' as event, h ->> 'owner' as owner, (h ->> 'epoch')::int as epoch, h ->> 'error' as error
from jobqueue.job, jsonb_array_elements(history) h where id = %(id)s

-- name: published
select id, status, published_name, left(published_digest, 12) as digest, published_epoch, epoch
from jobqueue.job where id = %(id)s

-- name: finished
select id, status, attempts, finished_epoch, finished_by, finished_at from jobqueue.job where id = %(id)s

-- name: dead_letter
select id, type, status, attempts, max_attempts, lease_losses, last_error, history -> -1 ->> 'event' as last_end,
       history -> -1 ->> 'owner' as last_owner
from jobqueue.job where id = %(id)s

-- name: releases
select id, status, attempts, releases, run_at, history -> -1 ->> 'error' as last_reason
from jobqueue.job where id = %(id)s

-- name: lost_together
select h ->> 'owner' as owner, count(*) as jobs_lost, string_agg(distinct j.type, ', ' order by j.type) as types,
       max(j.lease_losses) as most_losses_of_one
from jobqueue.job j, jsonb_array_elements(j.history) h
where h ->> 'event' = 'lost' and (h ->> 'at')::timestamptz > jobqueue.now() - interval '1 hour'
group by h ->> 'owner' having count(*) > 1 order by jobs_lost desc

-- name: archived
select id, status, finished_epoch, finished_by from jobqueue.job_archive where id = %(id)s

-- name: key
select k.key, k.job_id, j.status from jobqueue.job_key k left join jobqueue.job j on j.id = k.job_id
where k.key = %(key)s

-- name: waiting
select type, count(*) as due, jobqueue.now() - min(run_at) as oldest
from jobqueue.job where status = 'ready' and run_at <= jobqueue.now() and type = %(type)s group by type

-- name: missed
select schedule_id, count(*) as slots, min(slot) as first, max(slot) as last, min(reason) as reason
from jobqueue.missed_slot where schedule_id = %(schedule)s group by schedule_id

-- name: schedule
select id, cron, timezone, paused, problem, next_run_at, last_slot from jobqueue.schedule where id = %(schedule)s

-- name: paused
select type, at from jobqueue.paused_type where type = %(type)s

-- name: open_transactions
-- Whoever has a transaction open may hold the row: the oldest first. One's own session is left out.
select pid, application_name, state, jobqueue.now() - xact_start as open_for
from pg_stat_activity
where datname = current_database() and xact_start is not null and pid <> pg_backend_pid() order by xact_start

-- name: sizes
select pg_table_size('jobqueue.job') + pg_indexes_size('jobqueue.job') as job,
       pg_table_size('jobqueue.job_archive') + pg_indexes_size('jobqueue.job_archive') as archive,
       pg_table_size('jobqueue.job_key') + pg_indexes_size('jobqueue.job_key') as keys

-- name: tidy
vacuum (full, analyze) jobqueue.job, jobqueue.job_archive, jobqueue.job_key

-- ---------------------------------------------------------------- what drives the system into a state

-- name: lock
select id from jobqueue.job where id = %(id)s for update

-- name: ten_minutes_late
update jobqueue.schedule set next_run_at = date_trunc('minute', jobqueue.now()) - interval '10 minutes'

-- name: break_by_hand
update jobqueue.schedule set cron = '61 * * * *', next_run_at = jobqueue.now() where id = 'nightly'
