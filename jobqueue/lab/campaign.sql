-- What a campaign's verdict is read from. Every query returns the members, not only how many there are.

-- name: counts
select status, count(*)
from (select status from jobqueue.job union all select status from jobqueue.job_archive) all_jobs
group by status order by status

-- name: unfinished
select count(*) from jobqueue.job where status in ('ready', 'running')

-- name: lost
-- Acknowledged, and now nowhere, or with an end that nobody decided.
select fed.id from unnest(%(ids)s::bigint[]) as fed(id)
left join (select id, status from jobqueue.job union all select id, status from jobqueue.job_archive) j on j.id = fed.id
where j.id is null or j.status <> 'done' order by fed.id

-- name: duplicated
select job_id from jobqueue_lab.effect where destination = 'transaction'
group by job_id having count(*) > 1 order by job_id

-- name: missing
-- Done, but its effect is not there: a completion that was sent again without its transaction would do that.
select j.id
from (select id, status, payload from jobqueue.job union all select id, status, payload from jobqueue.job_archive) j
where j.status = 'done' and j.payload ->> 'record' = 'transaction'
  and not exists (select from jobqueue_lab.effect e where e.job_id = j.id and e.destination = 'transaction')
order by j.id

-- name: stale
-- An effect in a job's transaction under another epoch or owner than the one that completed the job.
select e.job_id, e.epoch, e.owner from jobqueue_lab.effect e
join (select id, finished_epoch, finished_by from jobqueue.job
      union all select id, finished_epoch, finished_by from jobqueue.job_archive) j on j.id = e.job_id
where e.destination = 'transaction' and (e.epoch, e.owner) is distinct from (j.finished_epoch, j.finished_by)
order by e.job_id

-- name: over_budget
select id from (select id, attempts, max_attempts from jobqueue.job
                union all select id, attempts, max_attempts from jobqueue.job_archive) j
where attempts > max_attempts order by id

-- name: slots
-- Of each schedule: its jobs, their slots, and the slots that are named as missed, by reason.
select s.id, s.misfire, s.overlap, count(j.slot) as jobs, count(distinct j.slot) as slots,
       (select count(*) from jobqueue.missed_slot m where m.schedule_id = s.id and m.reason = 'misfire') as misfires,
       (select count(*) from jobqueue.missed_slot m where m.schedule_id = s.id and m.reason = 'overlap') as overlaps
from jobqueue.schedule s
left join (select schedule_id, slot from jobqueue.job
           union all select schedule_id, slot from jobqueue.job_archive) j on j.schedule_id = s.id
group by s.id order by s.id

-- name: miscounted
-- Schedules whose counter says something else than their named slots.
select id from jobqueue.schedule s
where missed_slots <> (select count(*) from jobqueue.missed_slot m where m.schedule_id = s.id) order by id

-- name: undecided
select count(*) from jobqueue.schedule where next_run_at <= jobqueue.now()

-- name: now
select jobqueue.now()

-- name: odd_instants
-- Stored instants outside of the campaign: a worker whose clock is a minute or a day wrong would leave them.
with told as (
  select 'job ' || id as member, unnest(array[created_at, run_at, started_at, finished_at, locked_until, slot]) as at
  from (select id, created_at, run_at, started_at, finished_at, locked_until, slot from jobqueue.job
        union all
        select id, created_at, run_at, started_at, finished_at, locked_until, slot from jobqueue.job_archive) j
  union all
  select 'history of job ' || id, (end_of ->> 'at')::timestamptz from jobqueue.job, jsonb_array_elements(history) end_of
  union all select 'effect ' || key, created_at from jobqueue.effect
  union all select 'incident ' || name, at from jobqueue.incident
  union all select 'key ' || key, created_at from jobqueue.job_key
  union all select 'schedule ' || id, unnest(array[last_slot, next_run_at]) from jobqueue.schedule)
select member, at::text from told
where at < %(began_at)s - interval '30 seconds' or at > jobqueue.now() + interval '30 seconds' order by member

-- name: clocks
-- What the workers' own clocks said when they wrote an effect, against the database's.
select count(*) as effects,
       count(*) filter (where abs(extract(epoch from worker_clock - at)) > 30) as by_a_wrong_clock,
       round(min(extract(epoch from worker_clock - at)))::int as furthest_behind_seconds,
       round(max(extract(epoch from worker_clock - at)))::int as furthest_ahead_seconds
from jobqueue_lab.effect where destination = 'transaction'

-- name: leases
select coalesce(sum(lease_losses), 0)::bigint, coalesce(max(epoch), 0)
from (select lease_losses, epoch from jobqueue.job union all select lease_losses, epoch from jobqueue.job_archive) j

-- name: incidents
select name, sum(n)::bigint from jobqueue.incident group by name order by name

-- name: open
select id, status from jobqueue.job where status in ('ready', 'running') order by id
