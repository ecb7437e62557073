-- What rows say, for jobqueue.lab.history.

-- name: rows
select id, type, idempotency_key as key, status, attempts, max_attempts, lease_losses, releases, epoch,
  locked_by as owner,
  locked_until, run_at, created_at, started_at, finished_at, finished_by, finished_epoch, published_by, published_epoch,
  published_name, published_digest, schedule_id, slot, history, history_trimmed, archived
from (select *, false as archived from jobqueue.job union all select *, true from jobqueue.job_archive) j order by id

-- name: effects
select 'jobqueue.effect' as destination, key, job_id, epoch, null as owner, created_at as at, true as once
from jobqueue.effect order by created_at, key

-- name: has_lab_effects
select to_regclass('jobqueue_lab.effect') is not null

-- name: lab_effects
-- Inside the job's transaction a destination promises once; outside of it takes in whatever it is sent.
select destination, 'lab/' || job_id as key, job_id, epoch, owner, at, destination = 'transaction' as once
from jobqueue_lab.effect order by at, job_id

-- name: incidents
select at, name, type, n from jobqueue.incident order by at, name

-- name: missed_slots
select schedule_id, slot, reason from jobqueue.missed_slot order by schedule_id, slot

-- name: policies
select id as schedule_id, misfire, misfire_grace_seconds, max_catch_up, overlap from jobqueue.schedule order by id

-- name: one_instant
set transaction isolation level repeatable read
