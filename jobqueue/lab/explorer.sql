-- What jobqueue.lab.explorer sends besides the queue's own statements: a state of the world read whole, and put back.

-- name: begin
begin

-- name: base
savepoint base

-- name: to_base
rollback to savepoint base

-- name: rollback
rollback

-- name: vacuum
vacuum jobqueue.job, jobqueue.job_archive, jobqueue.job_key, jobqueue.schedule

-- name: branch
savepoint branch

-- name: back
rollback to savepoint branch

-- name: block
savepoint block

-- name: undo_block
rollback to savepoint block

-- name: set_clock
select set_config('jobqueue.now', %(now)s, false)

-- name: world
-- Rows whole, so that no column can hide a difference between two states.
select concat('{"job":', (select coalesce(json_agg(j order by j.id), '[]') from jobqueue.job j),
  ',"archive":', (select coalesce(json_agg(a order by a.id), '[]') from jobqueue.job_archive a),
  ',"key":', (select coalesce(json_agg(k order by k.key), '[]') from jobqueue.job_key k),
  ',"effect":', (select coalesce(json_agg(e order by e.key), '[]') from jobqueue.effect e),
  ',"schedule":', (select coalesce(json_agg(s order by s.id), '[]') from jobqueue.schedule s),
  ',"missed":', (select coalesce(json_agg(m order by m.schedule_id, m.slot), '[]') from jobqueue.missed_slot m), '}')

-- name: jobs
-- The same, where nothing but jobs can change: half the work of a search is to read states.
select concat('{"job":', (select coalesce(json_agg(j order by j.id), '[]') from jobqueue.job j),
  ',"archive":', (select coalesce(json_agg(a order by a.id), '[]') from jobqueue.job_archive a), '}')

-- name: restore
-- A state put back as it was read, into empty tables.
-- (A payload of JSON null would come back as SQL NULL: scenarios give one.)
with job as (
  insert into jobqueue.job select * from json_populate_recordset(null::jobqueue.job, %(world)s::json->'job')),
archive as (insert into jobqueue.job_archive
  select * from json_populate_recordset(null::jobqueue.job_archive, %(world)s::json->'archive')),
key as (insert into jobqueue.job_key
  select * from json_populate_recordset(null::jobqueue.job_key, %(world)s::json->'key')),
effect as (insert into jobqueue.effect
  select * from json_populate_recordset(null::jobqueue.effect, %(world)s::json->'effect')),
schedule as (insert into jobqueue.schedule
  select * from json_populate_recordset(null::jobqueue.schedule, %(world)s::json->'schedule'))
insert into jobqueue.missed_slot
select * from json_populate_recordset(null::jobqueue.missed_slot, %(world)s::json->'missed')

-- name: restore_ids
-- A sequence is in no transaction: without this the ids of new jobs would hang on the order of the search.
select setval('jobqueue.job_id_seq', greatest(1, last), last > 0)
from (select greatest((select max(id) from jobqueue.job), (select max(id) from jobqueue.job_archive),
                      (select max(job_id) from jobqueue.job_key), 0) as last) known
