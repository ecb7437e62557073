-- What the groups of the laboratory run send beside the queue's own statements.

-- name: lock
select id from jobqueue.job where id = %(id)s for update

-- name: jobs
select count(*) from jobqueue.job

-- name: make_destination
create table public.destination (n bigint generated always as identity, job_id bigint, epoch bigint)

-- name: write_unfenced
insert into public.destination (job_id, epoch) values (%(id)s, %(epoch)s)

-- name: write_fenced
insert into public.destination (job_id, epoch)
select id, epoch from jobqueue.job where id = %(id)s and epoch = %(epoch)s and status = 'running'

-- name: written
select array_agg(epoch order by n) from public.destination

-- name: odd_instants
select count(*) from jobqueue.job
where greatest(run_at, created_at, started_at, finished_at) > jobqueue.now()
   or least(run_at, created_at, started_at, finished_at) < jobqueue.now() - interval '10 minutes'

-- name: wait_for_the_end
select pg_sleep(greatest(0, extract(epoch from locked_until - jobqueue.now()) + 0.01)) from jobqueue.job
where id = %(id)s

-- name: due_now
update jobqueue.job set run_at = jobqueue.now() where id = %(id)s and status = 'ready'
