-- What a fleet asks the database about its workers. Sessions are told apart by application_name: a worker's is its
-- owner.

-- name: sessions
select application_name, count(*) from pg_stat_activity
where application_name = any(%(owners)s) group by application_name

-- name: cut
-- As an administrator's command does: 57P01 for the worker, which reconnects. MATERIALIZED, because a WHERE with both
-- conditions may ask pg_terminate_backend first, of every session there is.
with own as materialized (select pid from pg_stat_activity where application_name = %(owner)s)
select pg_terminate_backend(pid) from own

-- name: is_installed
select to_regclass('jobqueue.job') is not null

-- name: unfinished
select count(*) from jobqueue.job where id = any(%(ids)s) and status in ('ready', 'running')
