-- Three roles with just the rights that their work needs; grant them to login roles: grant jobqueue_worker to mailer.
-- jobqueue_producer   enqueues, and learns the ids of its own keys; reads no payload
-- jobqueue_worker     Worker, Reaper, with jobqueue_producer Scheduler: leases and their ends; deletes no job
-- jobqueue_observer   reads everything (stats, explain, dead), changes nothing
-- Janitor, Schedules.put, pause_type, fence and install need the schema's owner: they delete, rewrite, decide for all.
-- Roles belong to the cluster, grants to this database; running this again, here or elsewhere, changes nothing.

do $$
declare
  wanted text;
begin
  foreach wanted in array array['jobqueue_producer', 'jobqueue_worker', 'jobqueue_observer'] loop
    if not exists (select from pg_catalog.pg_roles where rolname = wanted) then
      begin
        execute pg_catalog.format('create role %I nologin', wanted);
      exception when duplicate_object or unique_violation then null;  -- another database's install was faster
      end;
    end if;
  end loop;
  begin
    -- Only so are other roles' open transactions seen by an observer; it takes a right that not every owner has.
    if not pg_catalog.pg_has_role('jobqueue_observer', 'pg_read_all_stats', 'member') then
      grant pg_read_all_stats to jobqueue_observer;
    end if;
  exception when insufficient_privilege or unique_violation or internal_error then null;
  end;
end $$;

revoke all on all functions in schema jobqueue from public;
grant usage on schema jobqueue to jobqueue_producer, jobqueue_worker, jobqueue_observer;
grant execute on function jobqueue.now() to jobqueue_producer, jobqueue_worker, jobqueue_observer;
grant select on jobqueue.meta to jobqueue_producer, jobqueue_worker;

grant insert (id, type, payload, idempotency_key, run_at, max_attempts), select (id, type) on jobqueue.job
  to jobqueue_producer;
grant usage on sequence jobqueue.job_id_seq to jobqueue_producer;
grant insert (key, job_id, fingerprint), select on jobqueue.job_key to jobqueue_producer;
grant select, update (at), delete on jobqueue.listener to jobqueue_producer;

grant execute on all functions in schema jobqueue to jobqueue_worker;
grant select on jobqueue.job, jobqueue.job_archive, jobqueue.paused_type, jobqueue.schedule to jobqueue_worker;
grant update (status, run_at, attempts, lease_losses, releases, epoch, locked_by, locked_until, started_at, last_error,
              finished_at, finished_epoch, finished_by, published_name, published_digest, published_epoch, published_by,
              history, history_trimmed)
  on jobqueue.job to jobqueue_worker;
grant select, insert (key, job_id, epoch) on jobqueue.effect to jobqueue_worker;
grant insert (name, type, n) on jobqueue.incident to jobqueue_worker;
grant select, insert, update, delete on jobqueue.listener to jobqueue_worker;
grant update (next_run_at, last_slot, last_job_id, missed_slots, problem, revision) on jobqueue.schedule
  to jobqueue_worker;
grant insert (schedule_id, slot) on jobqueue.job to jobqueue_worker;
grant select, insert, delete on jobqueue.missed_slot to jobqueue_worker;

grant select on all tables in schema jobqueue to jobqueue_observer;
