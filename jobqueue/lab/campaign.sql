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
-- Slots of each schedule: how many jobs, and whether any minute between the first and the last has none.
select schedule_id, count(*) as jobs, count(distinct slot) as slots,
       extract(epoch from max(slot) - min(slot))::int / 60 + 1 as minutes
from (select schedule_id, slot from jobqueue.job union all select schedule_id, slot from jobqueue.job_archive) j
where schedule_id is not null group by schedule_id order by schedule_id

-- name: leases
select coalesce(sum(lease_losses), 0)::bigint, coalesce(max(epoch), 0)
from (select lease_losses, epoch from jobqueue.job union all select lease_losses, epoch from jobqueue.job_archive) j

-- name: incidents
select name, sum(n)::bigint from jobqueue.incident group by name order by name
