-- Views for psql and dashboards: the measures of a queue, by type; none reads the archive.
-- What finished is looked at for the last hour only, through the BRIN index on finished_at.

-- From run_at, never from created_at; 0 for a type with ready rows of which none is due. A loose index scan: as many
-- steps as there are types, however long the queue.
create view jobqueue.oldest_ready_age as
with recursive kind(type) as (
  (select type from jobqueue.job where status = 'ready' order by type limit 1)
  union all
  select (select j.type from jobqueue.job j where j.status = 'ready' and j.type > kind.type order by j.type limit 1)
  from kind where kind.type is not null)
select type, greatest(0, extract(epoch from jobqueue.now() - (
    select j.run_at from jobqueue.job j where j.type = kind.type and j.status = 'ready' order by j.run_at limit 1
  )))::float8 as age_seconds
from kind where type is not null;

create view jobqueue.depth as
select type, count(*) filter (where run_at <= jobqueue.now()) as due,
  count(*) filter (where run_at > jobqueue.now()) as future
from jobqueue.job where status = 'ready' group by type;

create view jobqueue.running_by_type as
select type, count(*) as running, count(*) filter (where locked_until <= jobqueue.now()) as expired
from jobqueue.job where status = 'running' group by type;

-- Of jobs that have begun: running, waiting for a retry, dead letters, done within the last hour.
create view jobqueue.attempts_distribution as
select type, attempts, count(*) as jobs from (
  select type, attempts from jobqueue.job where status = 'ready' and attempts > 0
  union all
  select type, attempts from jobqueue.job where status = 'running'
  union all
  select type, attempts from jobqueue.job where status in ('failed', 'dead')
  union all
  select type, attempts from jobqueue.job
  where status = 'done' and finished_at > jobqueue.now() - interval '1 hour') begun
group by type, attempts;

create view jobqueue.lease_expirations_per_hour as
select date_trunc('hour', at, 'UTC') as hour, type, sum(n)::bigint as expirations
from jobqueue.incident where name = 'lease_lost' group by 1, 2;

-- The reason is the last line of the last error; a lost lease has none of its own.
create view jobqueue.dead_letters as
select type, status, reason, count(*) as jobs,
  min(finished_at) as oldest_at, max(finished_at) as newest_at, max(id) as newest_id
from (select type, status, finished_at, id, case history -> -1 ->> 'event' when 'lost' then 'its last lease was lost'
             else left(coalesce(history -> -1 ->> 'error', last_error), 200) end as reason
      from jobqueue.job where status in ('failed', 'dead')) letter
group by type, status, reason;

create view jobqueue.missed_slots as
select id as schedule_id, missed_slots,
  (select max(slot) from jobqueue.missed_slot m where m.schedule_id = s.id) as newest_slot, problem
from jobqueue.schedule s where removed_at is null;

create view jobqueue.throughput as
select date_trunc('minute', finished_at, 'UTC') as minute, type, count(*) as done
from jobqueue.job where status = 'done' and finished_at > jobqueue.now() - interval '1 hour' group by 1, 2;

-- From run_at to the last claim: how long a job that was due waited for a worker.
create view jobqueue.wait_quantiles as
select type, jobs, q[1] as p50_seconds, q[2] as p90_seconds, q[3] as p99_seconds, q[4] as max_seconds
from (select type, count(*) as jobs, percentile_cont(array[0.5, 0.9, 0.99, 1])
        within group (order by greatest(extract(epoch from started_at - run_at), 0)::float8) as q
      from jobqueue.job where status = 'done' and finished_at > jobqueue.now() - interval '1 hour' group by type) x;

create view jobqueue.service_quantiles as
select type, jobs, q[1] as p50_seconds, q[2] as p90_seconds, q[3] as p99_seconds, q[4] as max_seconds
from (select type, count(*) as jobs, percentile_cont(array[0.5, 0.9, 0.99, 1])
        within group (order by extract(epoch from finished_at - started_at)::float8) as q
      from jobqueue.job where status = 'done' and finished_at > jobqueue.now() - interval '1 hour' group by type) x;

create view jobqueue.incidents as
select name, type, sum(n) filter (where at > jobqueue.now() - interval '1 hour') as last_hour, sum(n) as last_day
from jobqueue.incident where at > jobqueue.now() - interval '1 day' group by name, type;

-- Every reaper skips such a row for as long as that transaction lives. A row that several transactions share carries a
-- multixact and is not seen here.
create view jobqueue.expired_but_locked as
select j.id, j.type, j.locked_by, j.epoch, j.locked_until, l.pid, a.application_name, a.state, a.xact_start
from jobqueue.job j
join pg_catalog.pg_locks l
  on l.locktype = 'transactionid' and l.transactionid = j.xmax and l.granted and l.mode = 'ExclusiveLock'
left join pg_catalog.pg_stat_activity a on a.pid = l.pid
where j.status = 'running' and j.locked_until <= jobqueue.now() and l.pid <> pg_catalog.pg_backend_pid();

-- Every session of this database that waits for a lock at this moment: a sample.
create view jobqueue.lock_waits as
select l.pid, a.application_name, l.locktype, l.mode, l.waitstart, pg_catalog.pg_blocking_pids(l.pid) as blocked_by
from pg_catalog.pg_locks l join pg_catalog.pg_stat_activity a on a.pid = l.pid
where not l.granted and a.datname = pg_catalog.current_database();

-- What keeps dead rows from being vacuumed, and how many there are. Sessions of other roles show their times only to
-- members of pg_read_all_stats.
create view jobqueue.horizon as
select coalesce((select extract(epoch from jobqueue.now() - min(xact_start)) from pg_catalog.pg_stat_activity
                 where datname = pg_catalog.current_database() and pid <> pg_catalog.pg_backend_pid()), 0)::float8
    as oldest_transaction_seconds,
  (select coalesce(max(pg_catalog.age(xmin)), 0) from (
     select backend_xmin as xmin from pg_catalog.pg_stat_activity where pid <> pg_catalog.pg_backend_pid()
     union all select xmin from pg_catalog.pg_replication_slots
     union all select transaction from pg_catalog.pg_prepared_xacts) x) as oldest_snapshot_age,
  coalesce(t.n_dead_tup, 0) as dead_tuples, coalesce(t.n_live_tup, 0) as live_tuples,
  greatest(t.last_vacuum, t.last_autovacuum) as vacuumed_at
from (values (1)) one left join pg_catalog.pg_stat_user_tables t on t.relid = 'jobqueue.job'::regclass;
