-- Statements that only mutants of the queue send: each is a known wrong way, and something has to catch it.

-- name: complete_and_look
-- The look in the statement of the update: behind a lock it shows the row as it was before the wait.
with hit as (
  update jobqueue.job set
    status = 'done', finished_at = jobqueue.now(), finished_epoch = epoch, finished_by = locked_by,
    locked_by = null, locked_until = null
  where id = %(id)s and status = 'running' and locked_by = %(owner)s and epoch = %(epoch)s
  returning id)
select (select count(*) from hit) as hits, status, epoch, locked_by, locked_until, jobqueue.now() as now, finished_by,
  finished_epoch, published_by, published_epoch, published_name, published_digest, history, false as snapshot_isolation
from jobqueue.job where id = %(id)s

-- name: take_out
-- An archive in two transactions: out of the one table …
delete from jobqueue.job j
where finished_at <= jobqueue.now() - %(age)s::float8 * interval '1 second' and status = any (%(statuses)s)
returning row_to_json(j)::text

-- name: put_in
-- … and into the other.
insert into jobqueue.job_archive select * from json_populate_record(null::jobqueue.job, %(row)s::json)

-- name: record_slots
-- A slot that is recorded in one transaction …
update jobqueue.schedule set last_slot = greatest(last_slot, %(last_slot)s::timestamptz), next_run_at = %(next_run_at)s,
  revision = revision + 1
where id = %(id)s and revision = %(revision)s
returning id

-- name: make_slot_jobs
-- … and whose job is made in the next.
insert into jobqueue.job (type, payload, run_at, schedule_id, slot, idempotency_key)
select s.job_type, s.payload, given.run_at, s.id, given.slot, given.key
from jobqueue.schedule s,
  unnest(%(slots)s::timestamptz[], %(run_ats)s::timestamptz[], %(keys)s::text[]) as given(slot, run_at, key)
where s.id = %(id)s
returning id

-- name: remove_for_good
-- No tombstone: what this schedule has fired is forgotten with it.
delete from jobqueue.schedule where id = %(id)s returning revision

-- name: volatile_clock
create or replace function jobqueue.now() returns timestamptz language sql volatile parallel safe
  return pg_catalog.clock_timestamp()

-- name: stable_clock
create or replace function jobqueue.now() returns timestamptz language sql stable parallel safe
  return pg_catalog.statement_timestamp()

-- name: by_index
set enable_seqscan = off

-- name: explain
explain (format json)
