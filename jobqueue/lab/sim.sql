-- Statements of the simulation and its studies: what a run is read out with. Instants of rows are microseconds after
-- the beginning: exact.

-- name: sample
-- The measures at one instant. A job whose backoff runs is waiting for its retry, and not counted as ready.
select ready - waiting, due, running, waiting, dead, age
from (select count(*) as ready, count(*) filter (where run_at <= jobqueue.now()) as due,
             count(*) filter (where attempts > 0 and run_at > jobqueue.now()) as waiting,
             coalesce(extract(epoch from jobqueue.now() - min(run_at) filter (where run_at <= jobqueue.now())), 0)
               ::float8 as age
      from jobqueue.job where status = 'ready') r,
  (select count(*) as running from jobqueue.job where status = 'running') n,
  (select count(*) as dead from jobqueue.job where status in ('failed', 'dead')) d

-- name: jobs
select id, type, status,
  (extract(epoch from created_at - %(beginning)s::timestamptz) * 1000000)::bigint,
  (extract(epoch from run_at - %(beginning)s::timestamptz) * 1000000)::bigint,
  (extract(epoch from started_at - %(beginning)s::timestamptz) * 1000000)::bigint,
  (extract(epoch from finished_at - %(beginning)s::timestamptz) * 1000000)::bigint,
  attempts, lease_losses
from (select * from jobqueue.job union all select * from jobqueue.job_archive) j
where id > %(after)s order by id limit %(most)s

-- name: delays
-- How long each job still has to wait.
select extract(epoch from run_at - jobqueue.now())::float8 from jobqueue.job order by id

-- name: next_slot
select (extract(epoch from min(next_run_at) - %(beginning)s::timestamptz) * 1000000)::bigint from jobqueue.schedule

-- name: vacuum
-- Claims walk the dead entries before the first live one (250 µs per thousand), and autovacuum naps a minute: here that
-- is many thousand jobs.
vacuum (truncate false, parallel 0) jobqueue.job
