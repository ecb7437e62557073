-- The law of the table queue (schema version 3).
--
-- Tables   job           one row tells a job's whole story; live rows and what finished lately
--          job_archive   finished rows, same columns
--          job_key       idempotency keys; they outlive their jobs
--          effect        keys of effects that handlers recorded in a job's own transaction
--          schedule      recurring schedules; missed_slot names the slots that did not run
--          incident      what rows cannot show: lost leases, stale writes refused, empty claims
--          paused_type   types that are not claimed for now
--          listener      idle workers that want a NOTIFY (a hint only; polling is the path of correctness)
--          meta          schema version and mode
-- Verbs    queries.sql: enqueue, claim, adopt, heartbeat, complete, fail, release, reap, publish, cancel, redrive,
-- archive Clock    jobqueue.now(), and nothing else, says what time it is

create schema jobqueue;

-- STABLE and statement time: inlined by the planner, usable as an index bound (a VOLATILE clock: 354 ms instead of 4
-- among 200,000 future rows), fresh in every statement of a long transaction (transaction time makes leases that are
-- born expired). A RETURN body is bound at creation; a SET clause would forbid inlining. virtual.sql replaces the body
-- in the lab.
create function jobqueue.now() returns timestamptz language sql stable parallel safe
  return pg_catalog.statement_timestamp();

-- A claim that is lost in a crash hands its epoch out twice, so a claim is durable even where commits are not.
create function jobqueue.durable() returns boolean language sql volatile
  return case pg_catalog.current_setting('synchronous_commit')
    when 'off' then pg_catalog.set_config('synchronous_commit', 'on', true) is not null else true end;

-- An instant as text for the history, the same in every session's time zone.
create function jobqueue.iso(at timestamptz) returns text language sql stable parallel safe
  return pg_catalog.to_char(at at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"');

-- The history with one more entry; the oldest goes first (each statement counts it in history_trimmed).
create function jobqueue.note(history jsonb, event text, owner text, epoch bigint, error text) returns jsonb
  language sql stable parallel safe
  return (case when pg_catalog.jsonb_array_length(history) >= 50 then history - 0 else history end)
    || pg_catalog.jsonb_build_array(pg_catalog.jsonb_build_object('at', jobqueue.iso(jobqueue.now()), 'event', event,
         'owner', owner, 'epoch', epoch, 'error', error));

-- Limits of single columns are domains: a CHECK of the table is evaluated again at every update of a row, a domain's
-- only where its column is written (4 µs of the 40 that a job costs the server between claim and completion).
create domain jobqueue.type_text as text
  constraint "a type has 1 to 200 bytes" check (octet_length(value) between 1 and 200);
create domain jobqueue.payload_json as jsonb
  constraint "a payload has at most 1 MiB" check (octet_length(value::text) <= 1048576);
create domain jobqueue.key_text as text
  constraint "a key has 1 to 512 bytes" check (octet_length(value) between 1 and 512);
create domain jobqueue.owner_text as text
  constraint "an owner has 1 to 200 bytes" check (octet_length(value) between 1 and 200);
create domain jobqueue.schedule_text as text
  constraint "a schedule id has 1 to 400 bytes" check (octet_length(value) between 1 and 400);
create domain jobqueue.error_text as text
  constraint "an error has at most 16 KiB" check (octet_length(value) <= 16384);
create domain jobqueue.history_json as jsonb
  constraint "a history has at most 50 entries" check (jsonb_array_length(value) <= 50);
create domain jobqueue.instant as timestamptz
  constraint "instants are finite" check (isfinite(value));

-- Rules between columns, as a domain over what they need to know of a row: a session parses a domain's once, a table's
-- CHECKs at every statement (nine of them: 87 µs of the 140 of one completion; so 31). Short fields, never null, since
-- each row is put together for it: with the columns themselves a job of a batch cost 1.3 µs more.
create type jobqueue.ruled as (
  epoch bigint, attempts integer, max_attempts integer, lease_losses integer, releases integer, history_trimmed integer,
  owned boolean, leased boolean, begun boolean, ended boolean, signed boolean, status text);
create domain jobqueue.rules as jobqueue.ruled
  constraint "a status is one of six, and only a finished row has an end" check (
    case (value).status when 'done' then (value).ended when 'ready' then not (value).ended
      when 'running' then not (value).ended when 'failed' then (value).ended when 'dead' then (value).ended
      when 'cancelled' then (value).ended else false end)
  constraint "a ready row has an attempt left, and no row more than that" check (
    (value).attempts < (value).max_attempts or
    (value).attempts = (value).max_attempts and (value).status <> 'ready')
  constraint "a running row, and no other, has an owner, an epoch and an end" check (
    case when (value).owned then (value).status = 'running' and (value).leased and (value).begun and (value).epoch > 0
        and (value).attempts > 0
      else (value).status <> 'running' and not (value).leased end)
  constraint "a done row names the epoch that did it" check ((value).signed or (value).status <> 'done')
  constraint "lost leases are attempts" check ((value).lease_losses >= 0 and (value).lease_losses <= (value).attempts)
  constraint "counts begin at 0, the most attempts at 1" check (
    (value).epoch >= 0 and (value).releases >= 0 and (value).history_trimmed >= 0
    and (value).max_attempts >= 1 and (value).max_attempts <= 10000);

create table jobqueue.job (
  id bigint generated by default as identity primary key,
  type jobqueue.type_text not null,
  payload jobqueue.payload_json not null default '{}',
  idempotency_key jobqueue.key_text,       -- a copy for the reader; uniqueness lives in job_key
  status text not null default 'ready',
  run_at jobqueue.instant not null default jobqueue.now(),
  attempts integer not null default 0,     -- begun and not given back
  max_attempts integer not null default 5,
  lease_losses integer not null default 0, -- tells "its worker died" from "its handler failed"
  releases integer not null default 0,     -- asked for by the handler, in a row
  epoch bigint not null default 0,         -- the fencing token: +1 at every claim or adoption, never reset
  locked_by jobqueue.owner_text,
  locked_until jobqueue.instant,
  started_at jobqueue.instant,             -- the last claim or adoption
  last_error jobqueue.error_text,
  created_at jobqueue.instant not null default jobqueue.now(),
  finished_at jobqueue.instant,
  finished_epoch bigint,
  finished_by text,                        -- with the epoch: two owners can hold one epoch after a lost claim
  published_name text,
  published_digest text,
  published_epoch bigint,
  published_by text,
  schedule_id jobqueue.schedule_text,
  slot jobqueue.instant,
  history jobqueue.history_json not null default '[]', -- every end of a lease that is not `done`, and decisions by hand
  history_trimmed integer not null default 0,
  -- Parsed by every statement that writes a row, so it is short: the rules themselves are the domain's.
  constraint "a row keeps the rules" check ((row(epoch, attempts, max_attempts, lease_losses, releases,
    history_trimmed, locked_by is not null, locked_until is not null, started_at is not null, finished_at is not null,
    finished_epoch is not null and finished_by is not null, status)::jobqueue.rules) is distinct from null)
)
-- Heartbeats stay HOT: no index holds locked_until, and a page keeps room for the new version (85–100 % HOT at 70).
with (fillfactor = 70,
-- A queue's rows die young: vacuum after 2 % or 500 dead rows, not 20 %, and without pauses, or the claim's index scan
-- walks their dead entries; analyze seldom changes a plan here, so it may be rarer.
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_cost_delay = 0,
  autovacuum_analyze_scale_factor = 0.2, autovacuum_analyze_threshold = 2000);

-- Partial, by type: a claim walks neither finished rows, nor the future, nor other types' backlog
-- (the full index on (status, run_at) costs a fifth of the speed).
-- Measured and left: no index whose predicate mentions status, so that a completion is HOT. With fillfactor 50 a job
-- then costs the server 33.5 µs instead of 39.7, and 566 bytes of WAL instead of 753; but running rows could be found
-- only through a BRIN index, a window that the reaper keeps, and now and then a pass over the whole table.
create index job_ready on jobqueue.job (type, run_at, id) where status = 'ready';
create index job_running on jobqueue.job (id) where status = 'running';
create index job_dead on jobqueue.job (finished_at) where status in ('failed', 'dead');
-- For the archive and "done per minute": BRIN, since a btree entry at every completion would cost as much as the
-- completion's own.
create index job_finished on jobqueue.job using brin (finished_at) with (pages_per_range = 16, autosummarize = on);

create table jobqueue.job_archive (like jobqueue.job, primary key (id));
create index job_archive_finished on jobqueue.job_archive using brin (finished_at)
  with (pages_per_range = 32, autosummarize = on);

-- Its own row, so that it outlives the job; no foreign key, because the job moves to the archive and the key stays.
create table jobqueue.job_key (
  key jobqueue.key_text primary key,
  job_id bigint not null,
  fingerprint bigint not null,             -- of type and payload: says "not the same job" without reading it
  created_at timestamptz not null default jobqueue.now()
);
create index job_key_age on jobqueue.job_key using brin (created_at) with (pages_per_range = 32, autosummarize = on);

create table jobqueue.effect (
  key jobqueue.key_text primary key,
  job_id bigint not null,
  epoch bigint not null,
  created_at timestamptz not null default jobqueue.now()
);

create table jobqueue.schedule (
  id jobqueue.schedule_text primary key,
  job_type jobqueue.type_text not null,
  cron text not null,
  timezone text not null default 'UTC',
  payload jobqueue.payload_json not null default 'null',
  spread_seconds double precision not null default 0,
  misfire text not null default 'last',
  misfire_grace_seconds double precision not null default 60,
  max_catch_up integer not null default 100,
  overlap text not null default 'allow',
  max_attempts integer not null default 5,
  paused boolean not null default false,
  next_run_at jobqueue.instant,            -- NULL: paused, removed or broken (see problem)
  last_slot jobqueue.instant,              -- the newest slot decided; survives edits and removal
  last_job_id bigint,
  missed_slots bigint not null default 0,
  problem text,                            -- why a row broken by hand does not fire
  revision bigint not null default 0,      -- slots are computed before the row is locked; this fences the result
  removed_at jobqueue.instant,             -- a tombstone: with the row gone, an old slot could fire again
  constraint "a cron expression has 1 to 200 characters" check (length(cron) between 1 and 200),
  constraint "a time zone has 1 to 100 bytes" check (octet_length(timezone) between 1 and 100),
  constraint "a spread lies in 0 to 86400 seconds" check (spread_seconds between 0 and 86400),
  constraint "a misfire policy is skip, last or all" check (misfire in ('skip', 'last', 'all')),
  constraint "a misfire grace lies in 0 to 86400 seconds" check (misfire_grace_seconds between 0 and 86400),
  constraint "a catch-up has 1 to 10000 slots" check (max_catch_up between 1 and 10000),
  constraint "an overlap policy is allow or skip" check (overlap in ('allow', 'skip')),
  constraint "attempts are bounded" check (max_attempts between 1 and 10000)
);
create index schedule_due on jobqueue.schedule (next_run_at) where next_run_at is not null;

create table jobqueue.missed_slot (
  schedule_id text not null,
  slot timestamptz not null,
  reason text not null,
  primary key (schedule_id, slot)
);

create table jobqueue.incident (
  at timestamptz not null default jobqueue.now(),
  name text not null,
  type text,
  n bigint not null default 1,
  constraint "an incident happened at least once" check (n > 0)
);
create index incident_at on jobqueue.incident (at);

create table jobqueue.paused_type (
  type jobqueue.type_text primary key,
  at timestamptz not null default jobqueue.now()
);

-- Unlogged: a crash empties it, and workers write themselves in again when they reconnect.
create unlogged table jobqueue.listener (
  id bigint generated always as identity primary key,
  owner text not null,
  types text[] not null,
  at timestamptz not null default jobqueue.now()
);

create table jobqueue.meta (schema_version integer not null, virtual boolean not null);
create unique index meta_has_one_row on jobqueue.meta ((true));
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

insert into jobqueue.meta (schema_version, virtual) values (3, false);
