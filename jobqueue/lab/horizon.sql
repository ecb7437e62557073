-- Statements of the what-if of the horizon (lab/horizon.py).

-- name: hold
-- The first statement of a repeatable-read transaction takes its snapshot; rows that die from now on are kept for it.
set transaction isolation level repeatable read;
select 1

-- name: autovacuum
-- {settings} is filled in by the settings' quoted names and literals.
alter table jobqueue.job set ({settings})

-- name: no_autovacuum
alter table jobqueue.job set (autovacuum_enabled = off)

-- name: state
select coalesce(n_dead_tup, 0)::float8, coalesce(autovacuum_count, 0),
  pg_relation_size('jobqueue.job')::float8 + pg_indexes_size('jobqueue.job')::float8
from pg_stat_user_tables where relid = 'jobqueue.job'::regclass
