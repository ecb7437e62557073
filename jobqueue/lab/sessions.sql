-- What the scripted sessions of jobqueue.lab.sessions send besides the queue's own statements.

-- name: begin
begin

-- name: begin_repeatable_read
begin isolation level repeatable read

-- name: commit
commit

-- name: rollback
rollback

-- name: look_around
-- Takes the snapshot of a REPEATABLE READ transaction.
select count(*) from jobqueue.job

-- name: blockers
select pg_blocking_pids(%(pid)s)

-- name: cancel_session
select pg_terminate_backend(%(pid)s)

-- name: lock_row
select id from jobqueue.job where id = %(id)s for update

-- name: end_leases
-- As if their time had passed.
update jobqueue.job set locked_until = jobqueue.now() - interval '1 second' where status = 'running'

-- name: is_over
select locked_until <= jobqueue.now() from jobqueue.job where id = %(id)s

-- name: make_due
-- As if a minute had passed since the schedule was put.
update jobqueue.schedule set next_run_at = date_trunc('minute', jobqueue.now())

-- name: empty
-- The order is free: no table of the queue has a foreign key.
do $$ declare name text; begin
  for name in select tablename from pg_tables where schemaname = 'jobqueue' and tablename <> 'meta' loop
    execute format('delete from jobqueue.%I', name);
  end loop;
  alter sequence jobqueue.job_id_seq restart;
end $$

-- name: rows
select string_agg(concat_ws(' ', 'job', id, status, 'epoch', epoch, locked_by), ', ' order by id) from jobqueue.job
