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

-- name: archived
select id, status, finished_epoch, finished_by from jobqueue.job_archive where id = %(id)s

-- name: key
select key, job_id from jobqueue.job_key where key = %(key)s

-- name: missed
select schedule_id, count(*) as slots, min(reason) as reason from jobqueue.missed_slot where schedule_id = %(schedule)s
group by schedule_id

-- name: problem
select id, problem, next_run_at is null as stopped from jobqueue.schedule where id = %(schedule)s

-- name: paused
select type from jobqueue.paused_type where type = %(type)s

-- name: holders
select count(*) as expired_but_locked from jobqueue.job
where status = 'running' and locked_until <= jobqueue.now()
  and id not in (select id from jobqueue.job where status = 'running' for no key update skip locked)

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
