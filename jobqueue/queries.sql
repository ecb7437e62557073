-- Every statement that is sent, by name. A change of state is one statement and its WHERE clause is the fence;
-- publish, strict complete and reap lock first and update second, in one transaction, because only a statement that
-- begins after a lock wait has a clock from after it.
-- Locks are FOR NO KEY UPDATE: a user's row that references the job (FOR KEY SHARE) must not make it look locked.

-- ---------------------------------------------------------------- enqueue
-- NOTIFY takes a global lock over the commit's fsync (x 0.38 with eight producers), so it is a transaction of its own
-- that writes nothing durable (`wake`), sent where somebody listens and a job is due: while workers are busy nobody is
-- listening. In one statement, a quarter of an enqueue's time was the preparation of a NOTIFY that was seldom sent.

-- name: enqueue
insert into jobqueue.job (type, payload, run_at, max_attempts)
values (%(type)s, %(payload)s::jsonb,
        coalesce(%(run_at)s::timestamptz, jobqueue.now() + %(delay)s::float8 * interval '1 second'), %(max_attempts)s)
returning id, exists (select from jobqueue.listener) as heard

-- name: enqueue_keyed
-- The registry decides, in every isolation level, also for a job that was archived or is being archived. (A unique
-- column on job with a look into the archive gave five keys two jobs in a race.) The look first spends no id on a known
-- key.
with won as (
  insert into jobqueue.job_key (key, job_id, fingerprint)
  select %(key)s::text, nextval('jobqueue.job_id_seq'),
         jsonb_hash_extended(jsonb_build_array(%(type)s::text, %(payload)s::jsonb), 0)
  where not exists (select from jobqueue.job_key where key = %(key)s::text)
  on conflict (key) do nothing
  returning job_id),
new as (
  insert into jobqueue.job (id, type, payload, idempotency_key, run_at, max_attempts)
  select job_id, %(type)s, %(payload)s::jsonb, %(key)s::text,
         coalesce(%(run_at)s::timestamptz, jobqueue.now() + %(delay)s::float8 * interval '1 second'), %(max_attempts)s
  from won returning id)
select id, exists (select from jobqueue.listener) as heard from new

-- name: enqueue_many
-- Keys are inserted in their own order, so that two batches can't deadlock; jobs in input order. Known keys are looked
-- up one by one: as `not exists`, planned on an empty registry, each batch read all of it until autovacuum's next look.
-- `(… in …) is true` is a hash, never a join: planned for one row, a nested loop compared each job with each (x 0.05).
with input as materialized (
  select nextval('jobqueue.job_id_seq') as id, i.* from (
    select * from unnest(%(types)s::text[], %(payloads)s::jsonb[], %(keys)s::text[], %(run_ats)s::timestamptz[],
                         %(delays)s::float8[], %(max_attempts)s::int[])
      with ordinality as x(type, payload, key, run_at, delay, max_attempts, ord)
    where key is null or (select true from jobqueue.job_key k where k.key = x.key) is null
    order by ord) i),
won as (
  insert into jobqueue.job_key (key, job_id, fingerprint)
  select key, id, jsonb_hash_extended(jsonb_build_array(type, payload), 0)
  from input where key is not null order by key, ord
  on conflict (key) do nothing
  returning job_id),
born as (
  insert into jobqueue.job (id, type, payload, idempotency_key, run_at, max_attempts)
  select id, type, payload, key, coalesce(run_at, jobqueue.now() + delay * interval '1 second'), max_attempts
  from input where key is null or id in (select job_id from won) order by ord
  returning id)
select ord, id, exists (select from jobqueue.listener) as heard
from input where (id in (select id from born)) is true

-- name: reserve_ids
select array(select nextval('jobqueue.job_id_seq') from generate_series(1, %(count)s)), jobqueue.now()

-- name: new_keys
-- In the order of enqueue_many. Plain, since ON CONFLICT is 5 of the 14 µs of a key: a known one undoes all, and
-- enqueue_many is sent instead. It reads no row of the registry: nothing depends on when that was last analyzed.
insert into jobqueue.job_key (key, job_id, fingerprint)
select key, id, jsonb_hash_extended(jsonb_build_array(type, payload), 0)
from unnest(%(keys)s::text[], %(ids)s::bigint[], %(types)s::text[], %(payloads)s::jsonb[]) as x(key, id, type, payload)
order by key

-- name: copy_due
copy jobqueue.job (id, type, payload, max_attempts) from stdin

-- name: copy_keyed
copy jobqueue.job (id, type, payload, max_attempts, idempotency_key) from stdin

-- name: copy_later
copy jobqueue.job (id, type, payload, max_attempts, idempotency_key, run_at) from stdin

-- name: wake
-- A listener a job, whose row goes as it is told.
with woken as (
  delete from jobqueue.listener where id = any (array(
    select l.id from jobqueue.listener l where l.types && %(types)s::text[] limit %(count)s for update skip locked))
  returning owner)
select count(pg_notify('jobqueue_job', owner)) from woken

-- name: key_look
select job_id, fingerprint = jsonb_hash_extended(jsonb_build_array(%(type)s::text, %(payload)s::jsonb), 0) as matches
from jobqueue.job_key where key = %(key)s

-- name: key_look_many
select x.ord, k.job_id, k.fingerprint = jsonb_hash_extended(jsonb_build_array(x.type, x.payload), 0) as matches
from unnest(%(types)s::text[], %(payloads)s::jsonb[], %(keys)s::text[]) with ordinality as x(type, payload, key, ord)
cross join lateral (select job_id, fingerprint from jobqueue.job_key where key = x.key limit 1) k

-- ---------------------------------------------------------------- claim

-- name: claim
-- Locks per type, so that the backlog of others is never walked; MATERIALIZED and = any(array(…)): the locking select
-- runs once (as IN (SELECT … LIMIT 3 … SKIP LOCKED) it took 500), and the update always goes by primary key (a
-- parameter LIMIT in a join is planned as 10 percent of the table). Beyond the free slots only what a crash of this
-- process can't kill is claimed. after_at, after_id: where a worker's last claim ended, so that the dead entries of
-- what was claimed since the last vacuum are not walked again (250 µs a thousand).
with picked as materialized (
  select due.id, due.safe, row_number() over (order by due.run_at, due.id) as place
  from unnest(%(types)s::text[]) as asked(type)
  cross join lateral (
    select j.id, j.run_at, j.attempts + 1 < j.max_attempts and j.lease_losses = 0 as safe
    from jobqueue.job j
    where j.type = asked.type and j.status = 'ready' and j.run_at <= jobqueue.now()
      and (j.run_at, j.id) > (%(after_at)s::timestamptz, %(after_id)s::bigint)
    order by j.run_at, j.id limit %(limit)s for no key update skip locked) due
  where not exists (select from jobqueue.paused_type p where p.type = asked.type)),
taken as (
  update jobqueue.job j set
    status = 'running', epoch = epoch + 1, attempts = attempts + 1, locked_by = %(owner)s, started_at = jobqueue.now(),
    locked_until = jobqueue.now()
      + (%(leases)s::float8[])[array_position(%(types)s::text[], j.type)] * interval '1 second'
  where id = any (array(select id from picked where place <= %(limit)s and (place <= %(slots)s or safe)))
    and (select jobqueue.durable())
  returning id, type, payload, locked_by, epoch, attempts, releases, locked_until, slot, run_at)
select * from taken order by run_at, id

-- name: ready_types
-- A loose index scan: as many steps as there are types, however long the queue.
with recursive kind(type) as (
  (select type from jobqueue.job where status = 'ready' order by type limit 1)
  union all
  select (select j.type from jobqueue.job j where j.status = 'ready' and j.type > kind.type order by j.type limit 1)
  from kind where kind.type is not null)
select type from kind where type is not null

-- name: why_empty
-- A due row that the claim did not take was locked by another transaction (or came since: asking again is right then,
-- too).
select bool_or(first.run_at <= jobqueue.now()) as locked,
  min(first.run_at) filter (where first.run_at > jobqueue.now()) as next_run_at,
  jobqueue.now() as asked_at
from unnest(%(types)s::text[]) as asked(type)
cross join lateral (
  (select j.run_at from jobqueue.job j where j.type = asked.type and j.status = 'ready' and j.run_at <= jobqueue.now()
   order by j.run_at, j.id limit 1)
  union all
  (select j.run_at from jobqueue.job j where j.type = asked.type and j.status = 'ready' and j.run_at > jobqueue.now()
   order by j.run_at, j.id limit 1)) first
where not exists (select from jobqueue.paused_type p where p.type = asked.type)

-- name: adopt
with taken as (
  update jobqueue.job set
    epoch = epoch + 1, attempts = attempts + 1, lease_losses = lease_losses + 1, releases = 0, locked_by = %(owner)s,
    started_at = jobqueue.now(), locked_until = jobqueue.now() + %(lease)s::float8 * interval '1 second',
    history = jobqueue.note(history, 'lost', locked_by, epoch, null),
    history_trimmed = history_trimmed + (jsonb_array_length(history) >= 50)::int
  where id = %(id)s and status = 'running' and locked_until <= jobqueue.now() and attempts < max_attempts
    and (select jobqueue.durable())
  returning id, type, payload, locked_by, epoch, attempts, releases, locked_until, slot, run_at),
told as (insert into jobqueue.incident (name, type) select 'lease_lost', type from taken)
select * from taken

-- ---------------------------------------------------------------- what a lease can do

-- name: heartbeat
-- greatest: SET is computed before a lock wait, so a renewal that waited must not shorten the lease.
update jobqueue.job set locked_until = greatest(locked_until, jobqueue.now() + %(lease)s::float8 * interval '1 second')
where id = %(id)s and status = 'running' and locked_by = %(owner)s and epoch = %(epoch)s
returning locked_until

-- name: heartbeat_many
-- SKIP LOCKED: one row held by an open transaction must not let the other leases lapse. `is not distinct from`: the
-- planner must come by primary key, and not through the index of running rows, which it would rescan for every batch (x
-- 0.71). The update, too, goes row by row: with `id = any (ids)` beside it, it looked 100 leases up 100 times each.
with mine as materialized (
  select j.id, beat.lease
  from unnest(%(ids)s::bigint[], %(owners)s::text[], %(epochs)s::bigint[], %(seconds)s::float8[])
    as beat(id, owner, epoch, lease)
  join jobqueue.job j on j.id = beat.id
  where j.status is not distinct from 'running' and j.locked_by = beat.owner and j.epoch = beat.epoch
  for no key update of j skip locked)
update jobqueue.job j set locked_until = greatest(j.locked_until, jobqueue.now() + mine.lease * interval '1 second')
from mine where j.id = mine.id
returning j.id, j.locked_by, j.epoch

-- name: complete
update jobqueue.job set
  status = 'done', finished_at = jobqueue.now(), finished_epoch = epoch, finished_by = locked_by,
  locked_by = null, locked_until = null
where id = %(id)s and status = 'running' and locked_by = %(owner)s and epoch = %(epoch)s
returning id

-- name: complete_strict
-- Follows lease_lock in one transaction: this statement's clock is from after the wait.
update jobqueue.job set
  status = 'done', finished_at = jobqueue.now(), finished_epoch = epoch, finished_by = locked_by,
  locked_by = null, locked_until = null
where id = %(id)s and status = 'running' and locked_by = %(owner)s and epoch = %(epoch)s
  and jobqueue.now() < locked_until
returning id

-- name: complete_many
with mine as materialized (
  select j.id
  from unnest(%(ids)s::bigint[], %(owners)s::text[], %(epochs)s::bigint[]) as held(id, owner, epoch)
  join jobqueue.job j on j.id = held.id
  where j.status is not distinct from 'running' and j.locked_by = held.owner and j.epoch = held.epoch
  for no key update of j skip locked)
update jobqueue.job set
  status = 'done', finished_at = jobqueue.now(), finished_epoch = epoch, finished_by = locked_by,
  locked_by = null, locked_until = null
where id = any (array(select id from mine))
returning id, finished_by, epoch

-- name: fail
-- The alert is raised by the statement that makes the dead letter: no crash can part the two.
with ended as (
  update jobqueue.job set
    status = case when %(permanent)s then 'failed' when attempts >= max_attempts then 'dead' else 'ready' end,
    run_at = case when %(permanent)s or attempts >= max_attempts then run_at
                  else jobqueue.now() + %(delay)s::float8 * interval '1 second' end,
    finished_at = case when %(permanent)s or attempts >= max_attempts then jobqueue.now() end,
    releases = 0, locked_by = null, locked_until = null, last_error = %(error)s,
    history = jobqueue.note(history, case when %(permanent)s then 'failed_permanently' else 'failed' end,
                            locked_by, epoch, %(brief)s),
    history_trimmed = history_trimmed + (jsonb_array_length(history) >= 50)::int
  where id = %(id)s and status = 'running' and locked_by = %(owner)s and epoch = %(epoch)s
  returning id, type, status, attempts)
select status, case when status in ('dead', 'failed') then
    pg_notify('jobqueue_alert',
      json_build_object('id', id, 'type', type, 'status', status, 'attempts', attempts)::text) end as alert
from ended

-- name: release
update jobqueue.job set
  status = 'ready', attempts = attempts - 1, releases = releases + %(counted)s::boolean::int,
  run_at = jobqueue.now() + %(delay)s::float8 * interval '1 second', started_at = null,
  locked_by = null, locked_until = null,
  history = jobqueue.note(history, 'released', locked_by, epoch, %(reason)s),
  history_trimmed = history_trimmed + (jsonb_array_length(history) >= 50)::int
where id = %(id)s and status = 'running' and locked_by = %(owner)s and epoch = %(epoch)s
returning id

-- name: lease_lock
-- Waits behind whoever holds the row; what follows it in the same transaction reads a clock from after the wait.
-- No one-statement form is strict: behind a pure row lock PostgreSQL does not evaluate the WHERE again (measured).
select id from jobqueue.job
where id = %(id)s and status = 'running' and locked_by = %(owner)s and epoch = %(epoch)s
for no key update

-- name: publish
update jobqueue.job set
  published_name = %(name)s, published_digest = %(digest)s, published_epoch = epoch, published_by = locked_by
where id = %(id)s and status = 'running' and locked_by = %(owner)s and epoch = %(epoch)s
  and jobqueue.now() < locked_until
  and (published_epoch, published_by) is distinct from (epoch, locked_by)
returning id

-- name: look
-- A statement of its own: in one statement with the UPDATE it would show the row as it was before the wait.
select j.*, jobqueue.now() as now, current_setting('transaction_isolation') <> 'read committed' as snapshot_isolation
from (select id, status, epoch, locked_by, locked_until, finished_by, finished_epoch, published_by, published_epoch,
             published_name, published_digest, history from jobqueue.job where id = any (%(ids)s)
      union all
      select id, status, epoch, locked_by, locked_until, finished_by, finished_epoch, published_by, published_epoch,
             published_name, published_digest, history from jobqueue.job_archive where id = any (%(ids)s)) j

-- name: isolation
select current_setting('transaction_isolation') <> 'read committed'

-- ---------------------------------------------------------------- reap

-- name: expired
-- The first of two statements: locks, so that each row can be given its own delay. Any number of reapers; none waits.
select id, type, locked_by, epoch, attempts, max_attempts from jobqueue.job
where status = 'running' and locked_until <= jobqueue.now() and (%(ids)s::bigint[] is null or id = any (%(ids)s))
order by locked_until, id limit %(limit)s for no key update skip locked

-- name: reap
with lost as (
  update jobqueue.job j set
    status = case when attempts >= max_attempts then 'dead' else 'ready' end,
    run_at = case when attempts >= max_attempts then run_at else jobqueue.now() + given.delay * interval '1 second' end,
    finished_at = case when attempts >= max_attempts then jobqueue.now() end,
    lease_losses = lease_losses + 1, releases = 0, locked_by = null, locked_until = null,
    last_error = case when attempts < max_attempts then last_error else
      coalesce(last_error, 'its last lease was lost: no worker reported an end') end,
    history = jobqueue.note(history, 'lost', locked_by, epoch, null),
    history_trimmed = history_trimmed + (jsonb_array_length(history) >= 50)::int
  from unnest(%(ids)s::bigint[], %(delays)s::float8[]) as given(id, delay)
  where j.id = given.id and j.status is not distinct from 'running' and j.locked_until <= jobqueue.now()
  returning j.id, j.type, j.status, j.attempts),
told as (insert into jobqueue.incident (name, type, n) select 'lease_lost', type, count(*) from lost group by type)
select id, status, case when status = 'dead' then
    pg_notify('jobqueue_alert',
      json_build_object('id', id, 'type', type, 'status', status, 'attempts', attempts)::text) end as alert
from lost

-- name: release_unheld
-- After a lost connection: rows under this worker's own owner that it does not hold, from a claim whose COMMIT reply
-- was lost. Only a worker whose owner is unique to this start may do that.
update jobqueue.job set
  status = 'ready', attempts = attempts - 1, run_at = jobqueue.now(), started_at = null,
  locked_by = null, locked_until = null,
  history = jobqueue.note(history, 'released', locked_by, epoch, 'claimed, but the reply to the claim was lost'),
  history_trimmed = history_trimmed + (jsonb_array_length(history) >= 50)::int
where status = 'running' and locked_by = %(owner)s
  and not exists (select from unnest(%(ids)s::bigint[], %(epochs)s::bigint[]) as held(id, epoch)
                  where held.id = job.id and held.epoch = job.epoch)
returning id

-- ---------------------------------------------------------------- decisions by hand

-- name: cancel
-- The locking look says what the row was at the moment of the decision; a plain look said `ready` for a row that was
-- running.
with seen as materialized (
  select id, status, locked_by, epoch, started_at from jobqueue.job where id = %(id)s for no key update),
cancelled as (
  update jobqueue.job j set
    status = 'cancelled', finished_at = jobqueue.now(), locked_by = null, locked_until = null,
    history = jobqueue.note(j.history, 'cancelled', j.locked_by, j.epoch, null),
    history_trimmed = j.history_trimmed + (jsonb_array_length(j.history) >= 50)::int
  from seen where j.id = seen.id and seen.status in ('ready', 'running')
  returning j.id)
select seen.status, seen.locked_by, seen.epoch, seen.started_at, cancelled.id is not null as applied
from seen left join cancelled using (id)

-- name: cancel_type
with seen as materialized (
  select id from jobqueue.job where type = %(type)s and status in ('ready', 'running')
  order by id limit %(limit)s for no key update)
update jobqueue.job j set
  status = 'cancelled', finished_at = jobqueue.now(), locked_by = null, locked_until = null,
  history = jobqueue.note(history, 'cancelled', locked_by, epoch, null),
  history_trimmed = history_trimmed + (jsonb_array_length(history) >= 50)::int
where id = any (array(select id from seen)) and status in ('ready', 'running')
returning id

-- name: redrive
with chosen as materialized (
  select id from jobqueue.job
  where status = any (%(statuses)s) and (%(ids)s::bigint[] is null or id = any (%(ids)s))
    and (%(type)s::text is null or type = %(type)s)
  order by id for no key update)
update jobqueue.job set
  status = 'ready', attempts = 0, lease_losses = 0, releases = 0, run_at = jobqueue.now(), finished_at = null,
  history = jobqueue.note(history, 'redriven', null, epoch, null),
  history_trimmed = history_trimmed + (jsonb_array_length(history) >= 50)::int
where id = any (array(select id from chosen)) and status = any (%(statuses)s)
returning id

-- name: pause_type
insert into jobqueue.paused_type (type) values (%(type)s) on conflict (type) do nothing

-- name: resume_type
delete from jobqueue.paused_type where type = %(type)s

-- name: archive
-- FOR UPDATE, since it deletes. The key row stays, so the key stays used.
with old as materialized (
  select id from jobqueue.job
  where finished_at <= jobqueue.now() - %(age)s::float8 * interval '1 second' and status = any (%(statuses)s)
  limit %(limit)s for update skip locked),
gone as (delete from jobqueue.job where id = any (array(select id from old)) returning *)
insert into jobqueue.job_archive select * from gone returning id

-- ---------------------------------------------------------------- reading

-- name: job
select *, false as archived from jobqueue.job where id = %(id)s
union all
select *, true as archived from jobqueue.job_archive where id = %(id)s

-- name: dead_letters
select *, false as archived from jobqueue.job
where status in ('failed', 'dead') and (%(type)s::text is null or type = %(type)s)
order by finished_at desc, id desc limit %(limit)s

-- name: surroundings
-- What explain says beside the row. Counts stop at 1,000. Whoever holds a row's exclusive lock stands in its xmax.
select jobqueue.now() as now, (select at from jobqueue.paused_type where type = %(type)s) as paused_at,
  (select count(distinct owner) from jobqueue.listener where %(type)s = any (types)) as listeners,
  (select count(*) from (
     select from jobqueue.job where type = %(type)s and status = 'running' limit 1000) x) as running,
  (select count(*) from (select from jobqueue.job
     where type = %(type)s and status = 'ready' and (run_at, id) < (%(run_at)s, %(id)s) limit 1000) x) as ahead,
  (select jsonb_agg(jsonb_build_object('pid', l.pid, 'application_name', a.application_name, 'state', a.state,
     'xact_start', to_char(a.xact_start at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"')))
   from jobqueue.job j
   join pg_catalog.pg_locks l
     on l.locktype = 'transactionid' and l.transactionid = j.xmax and l.granted and l.mode = 'ExclusiveLock'
   left join pg_catalog.pg_stat_activity a on a.pid = l.pid
   where j.id = %(id)s and l.pid <> pg_catalog.pg_backend_pid()) as holders,
  (select jsonb_build_object('removed_at', removed_at, 'problem', problem, 'paused', paused,
                             'next_run_at', to_char(next_run_at at time zone 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"'))
   from jobqueue.schedule where id = %(schedule_id)s) as schedule

-- name: database_now
select jobqueue.now()

-- ---------------------------------------------------------------- effects and incidents

-- name: effect
-- In the handler's transaction, whose completion is the fence. The row is not locked here: its own heartbeats and
-- publications, on other connections, would wait for it, and so would a cancellation.
with mine as (
  select id from jobqueue.job
  where id = %(id)s and status = 'running' and locked_by = %(owner)s and epoch = %(epoch)s)
insert into jobqueue.effect (key, job_id, epoch) select %(key)s, id, %(epoch)s from mine
on conflict (key) do nothing returning key

-- name: effect_known
select job_id, epoch from jobqueue.effect where key = %(key)s

-- name: incidents
insert into jobqueue.incident (name, type, n)
select * from unnest(%(names)s::text[], %(types)s::text[], %(counts)s::bigint[])

-- ---------------------------------------------------------------- install

-- name: install_lock
select pg_advisory_xact_lock(hashtextextended('jobqueue.install', 0))

-- name: installed
select to_regclass('jobqueue.meta') is not null as present

-- name: meta
select schema_version, virtual from jobqueue.meta

-- name: has_roles
select coalesce(bool_or(has_schema_privilege(oid, 'jobqueue', 'usage')), false)
from pg_roles where rolname = 'jobqueue_observer'

-- name: view_grants
-- What others may read, as statements: it goes with a view that is dropped.
select format('grant %s on jobqueue.%I to %s%s', a.privilege_type, c.relname,
  case a.grantee when 0 then 'public' else quote_ident(pg_get_userbyid(a.grantee)) end,
  case when a.is_grantable then ' with grant option' end)
from pg_class c cross join aclexplode(c.relacl) a
where c.relnamespace = 'jobqueue'::regnamespace and c.relkind = 'v' and a.grantee <> c.relowner

-- name: drop_view
drop view if exists jobqueue.{view}

-- name: set_meta
insert into jobqueue.meta (schema_version, virtual) values (%(version)s, %(virtual)s)
on conflict ((true)) do update set schema_version = excluded.schema_version, virtual = excluded.virtual

-- name: schema_exists
select exists (select from pg_namespace where nspname = 'jobqueue')

-- name: uninstall
drop schema if exists jobqueue cascade

-- ---------------------------------------------------------------- measures

-- name: snapshot
-- A look reads what is live and what finished in the last minute, whatever else there is (10–25 ms beside a million).
with ready as (
  select attempts, count(*) filter (where run_at <= jobqueue.now()) as due,
    count(*) filter (where run_at > jobqueue.now()) as future
  from jobqueue.job where status = 'ready' group by attempts),
running as (
  select type, attempts, count(*) as n, count(*) filter (where locked_until <= jobqueue.now()) as expired
  from jobqueue.job where status = 'running' group by type, attempts),
dead as (
  select type, attempts, count(*) as n from jobqueue.job where status in ('failed', 'dead') group by type, attempts),
done as materialized (
  select count(*) as n, greatest(1, count(*) / 10000) as step
  from jobqueue.job where status = 'done' and finished_at > jobqueue.now() - interval '1 minute'),
recent as materialized (
  select attempts, greatest(extract(epoch from started_at - run_at), 0)::float8 as wait,
    extract(epoch from finished_at - started_at)::float8 as service
  from jobqueue.job where status = 'done' and finished_at > jobqueue.now() - interval '1 minute'
    and mod(id, (select step from done)) = 0),
begun as (
  select attempts, sum(n) as n from (
    select attempts, due + future as n from ready where attempts > 0 union all select attempts, n from running
    union all select attempts, n from dead
    union all select attempts, count(*) * (select step from done) from recent group by attempts) x
  group by attempts),
seen as (select name, sum(n) as n from jobqueue.incident where at > jobqueue.now() - interval '1 hour' group by name)
select jobqueue.now() as at,
  (select coalesce(sum(due), 0) from ready)::bigint as due,
  (select coalesce(sum(future), 0) from ready)::bigint as future,
  (select coalesce(sum(due + future), 0) from ready)::bigint as ready,
  (select coalesce(sum(due + future), 0) from ready where attempts > 0)::bigint as retrying,
  (select coalesce(jsonb_object_agg(type, n), '{}') from (select type, sum(n) as n from running group by type) x)
    as running,
  (select coalesce(jsonb_object_agg(type, n), '{}') from (select type, sum(n) as n from dead group by type) x) as dead,
  (select coalesce(jsonb_object_agg(type, age_seconds), '{}') from jobqueue.oldest_ready_age)
    as oldest_ready_age_seconds,
  (select n from done) as done_per_minute,
  (select coalesce(sum(missed_slots), 0) from jobqueue.schedule)::bigint as missed_slots,
  (select count(*) from jobqueue.missed_slots where problem is not null) as broken_schedules,
  (select coalesce(jsonb_object_agg(attempts, n), '{}') from begun) as attempts,
  (select percentile_cont(array[0.5, 0.9, 0.99, 1]) within group (order by wait) from recent) as wait,
  (select percentile_cont(array[0.5, 0.9, 0.99, 1]) within group (order by service) from recent) as service,
  (select coalesce(jsonb_object_agg(name, n), '{}') from seen) as incidents,
  (select coalesce(sum(expired), 0) from running)::bigint as expired,
  (select count(distinct id) from jobqueue.expired_but_locked) as expired_but_locked,
  (select count(*) from jobqueue.lock_waits) as lock_waits,
  horizon.* from jobqueue.horizon

-- name: view
select * from jobqueue.{view}

-- ---------------------------------------------------------------- wake-up: a hint, never the path of correctness

-- name: listen
-- A row of its own each time: one row an owner would have to wait for a producer's open transaction that has just taken
-- it away.
with old as (
  delete from jobqueue.listener where id = any (array(
    select l.id from jobqueue.listener l where l.owner = %(owner)s for update skip locked)))
insert into jobqueue.listener (owner, types) values (%(owner)s, %(types)s)

-- name: unlisten
delete from jobqueue.listener where id = any (array(
  select l.id from jobqueue.listener l where l.owner = %(owner)s for update skip locked))

-- name: subscribe
listen jobqueue_job

-- ---------------------------------------------------------------- clean-up: bounded batches, shared by any janitors

-- name: purge_keys
-- Its job must have left `job`; one snapshot sees a job that is being archived in one of the two tables, never in none.
-- A key is as old as its job, so created_at bounds the look; then the end of the archived job counts.
with old as materialized (
  select k.key from jobqueue.job_key k
  where k.created_at <= jobqueue.now() - %(age)s::float8 * interval '1 second'
    and not exists (select from jobqueue.job j where j.id = k.job_id)
    and not exists (select from jobqueue.job_archive a
                    where a.id = k.job_id and a.finished_at > jobqueue.now() - %(age)s::float8 * interval '1 second')
  limit %(limit)s for update skip locked)
delete from jobqueue.job_key where key = any (array(select key from old))

-- name: prune_archive
delete from jobqueue.job_archive where id = any (array(
  select id from jobqueue.job_archive where finished_at <= jobqueue.now() - %(age)s::float8 * interval '1 second'
  limit %(limit)s for update skip locked))

-- name: prune_incidents
delete from jobqueue.incident where ctid = any (array(
  select ctid from jobqueue.incident where at <= jobqueue.now() - %(age)s::float8 * interval '1 second'
  order by at limit %(limit)s for update skip locked))

-- name: prune_missed_slots
delete from jobqueue.missed_slot where ctid = any (array(
  select ctid from jobqueue.missed_slot where slot <= jobqueue.now() - %(age)s::float8 * interval '1 second'
  limit %(limit)s for update skip locked))

-- name: prune_listeners
delete from jobqueue.listener where id = any (array(
  select id from jobqueue.listener where at <= jobqueue.now() - %(age)s::float8 * interval '1 second'
  limit %(limit)s for update skip locked))

-- ---------------------------------------------------------------- Schedules

-- name: schedule_guard
-- One job per slot hangs on this key: without it (or with a CREATE INDEX CONCURRENTLY that failed) nothing is fired.
select exists (
  select from pg_index i join pg_attribute a on a.attrelid = i.indrelid and a.attnum = i.indkey[0]
  where i.indrelid = 'jobqueue.job_key'::regclass and i.indisunique and i.indisvalid and i.indpred is null
    and i.indnkeyatts = 1 and a.attname = 'key') as held

-- name: schedules_due
-- Looks only: slots are computed without a lock. SKIP LOCKED keeps a hundred rows held by an open transaction from
-- starving the others. Times are compared here, since two instants of a fold are equal in Python outside UTC.
select id, cron, timezone, spread_seconds, misfire, max_catch_up, overlap, revision, jobqueue.now() as now,
  greatest(next_run_at - interval '1 microsecond', last_slot) as decided_until,
  jobqueue.now() - misfire_grace_seconds * interval '1 second' as on_time_from,
  greatest(jobqueue.now(), last_slot) as floor
from jobqueue.schedule
where next_run_at <= jobqueue.now() and not paused and removed_at is null
order by next_run_at, id limit %(limit)s for no key update skip locked

-- name: fire
-- A schedule's due slots are decided by one statement: jobs, missed slots, last_slot and next_run_at, all or nothing.
-- Its fence is the revision, which every change moves; a slot at or before last_slot never fires, even without its key.
with mine as materialized (
  select s.*, s.overlap = 'skip' and exists (
    select from jobqueue.job j where j.id = s.last_job_id and j.status in ('ready', 'running')) as busy
  from jobqueue.schedule s
  where s.id = %(id)s and s.revision = %(revision)s and s.next_run_at is not null
  for no key update of s skip locked),
slot as materialized (
  select nextval('jobqueue.job_id_seq') as job_id, x.* from (
    select given.* from mine, unnest(%(slots)s::timestamptz[], %(run_ats)s::timestamptz[], %(keys)s::text[])
      as given(slot, run_at, key)
    where not mine.busy and given.slot > coalesce(mine.last_slot, '-infinity')
      and not exists (select from jobqueue.job_key k where k.key = given.key)
    order by given.slot) x),
won as (
  insert into jobqueue.job_key (key, job_id, fingerprint)
  select slot.key, slot.job_id, jsonb_hash_extended(jsonb_build_array(mine.job_type, mine.payload), 0)
  from mine, slot order by slot.key
  on conflict (key) do nothing
  returning job_id),
born as (
  insert into jobqueue.job (id, type, payload, idempotency_key, run_at, max_attempts, schedule_id, slot)
  select slot.job_id, mine.job_type, mine.payload, slot.key, slot.run_at, mine.max_attempts, mine.id, slot.slot
  from mine, slot where slot.job_id in (select job_id from won) order by slot.slot
  returning id, run_at),
missed as (
  insert into jobqueue.missed_slot (schedule_id, slot, reason)
  select mine.id, given.slot, given.reason
  from mine, unnest(%(missed_slots)s::timestamptz[], %(reasons)s::text[]) as given(slot, reason)
  union all
  select mine.id, given.slot, 'overlap' from mine, unnest(%(slots)s::timestamptz[]) as given(slot) where mine.busy
  on conflict do nothing),
forgotten as (
  delete from jobqueue.missed_slot m using mine
  where m.schedule_id = mine.id and (mine.busy or cardinality(%(reasons)s::text[]) > 0) and m.slot <= (
    select old.slot from jobqueue.missed_slot old where old.schedule_id = mine.id
    order by old.slot desc offset %(kept)s limit 1)),
decided as (
  update jobqueue.schedule s set
    last_slot = greatest(s.last_slot, %(last_slot)s::timestamptz), next_run_at = %(next_run_at)s,
    revision = s.revision + 1,
    missed_slots = s.missed_slots + %(missed)s::bigint + (mine.busy::int * cardinality(%(slots)s::timestamptz[])),
    last_job_id = coalesce((select max(id) from born), s.last_job_id), problem = null
  from mine where s.id = mine.id
  returning %(missed)s::bigint + (mine.busy::int * cardinality(%(slots)s::timestamptz[])) as missed, s.job_type),
woken as (
  delete from jobqueue.listener where id = any (array(
    select l.id from jobqueue.listener l
    where exists (select from decided, born where decided.job_type = any (l.types) and born.run_at <= jobqueue.now())
    limit cardinality(%(slots)s::timestamptz[]) for update skip locked))
  returning owner)
select array(select id from born order by id) as ids, missed,
  (select count(pg_notify('jobqueue_job', owner)) from woken) as woken
from decided

-- name: schedule_problem
-- Said once: without next_run_at the row is not looked at again until put or resume.
update jobqueue.schedule set problem = %(problem)s, next_run_at = null, revision = revision + 1
where id = %(id)s and revision = %(revision)s

-- name: schedule_seen
select revision, cron, timezone, removed_at is not null as removed, paused or next_run_at is null as idle,
  greatest(now.now, last_slot) as floor
from (select jobqueue.now() as now) now left join jobqueue.schedule on id = %(id)s

-- name: put_schedule
-- The same cron and zone again (every deployment does that) keeps next_run_at, so that slots of an outage are still
-- found; a new time begins after now and after last_slot, so that the past is never replayed.
insert into jobqueue.schedule as s (id, job_type, cron, timezone, payload, spread_seconds, misfire,
  misfire_grace_seconds, max_catch_up, overlap, max_attempts, next_run_at)
values (%(id)s, %(job_type)s, %(cron)s, %(timezone)s, %(payload)s::jsonb, %(spread_seconds)s, %(misfire)s,
  %(misfire_grace_seconds)s, %(max_catch_up)s, %(overlap)s, %(max_attempts)s, %(next_run_at)s)
on conflict (id) do update set
  job_type = excluded.job_type, cron = excluded.cron, timezone = excluded.timezone, payload = excluded.payload,
  spread_seconds = excluded.spread_seconds, misfire = excluded.misfire,
  misfire_grace_seconds = excluded.misfire_grace_seconds, max_catch_up = excluded.max_catch_up,
  overlap = excluded.overlap, max_attempts = excluded.max_attempts,
  next_run_at = case
    when s.paused and s.removed_at is null then null
    when (s.cron, s.timezone) = (excluded.cron, excluded.timezone) then coalesce(s.next_run_at, excluded.next_run_at)
    else excluded.next_run_at end,
  paused = s.paused and s.removed_at is null, problem = null, removed_at = null, revision = s.revision + 1
where s.revision = %(revision)s
returning revision

-- name: pause_schedule
update jobqueue.schedule set paused = true, next_run_at = null, revision = revision + 1
where id = %(id)s and removed_at is null
returning revision

-- name: resume_schedule
update jobqueue.schedule set paused = false, problem = null, next_run_at = %(next_run_at)s, revision = revision + 1
where id = %(id)s and revision = %(revision)s
returning revision

-- name: remove_schedule
-- A tombstone: were the row deleted, an old slot whose key has been pruned could fire again after a re-creation.
update jobqueue.schedule set removed_at = jobqueue.now(), next_run_at = null, paused = false, revision = revision + 1
where id = %(id)s and removed_at is null
returning revision

-- name: schedules
select * from jobqueue.schedule where removed_at is null order by id

-- ---------------------------------------------------------------- fence: after a fail-over that lost claims

-- name: fence_lock
lock table jobqueue.job in share row exclusive mode

-- name: fence_leases
update jobqueue.job set locked_until = least(locked_until, jobqueue.now()) where status = 'running' returning id

-- name: fence
update jobqueue.job set
  epoch = epoch + %(by)s,
  history = jobqueue.note(history, 'fenced', null, epoch, 'every live epoch was raised by ' || %(by)s::bigint),
  history_trimmed = history_trimmed + (jsonb_array_length(history) >= 50)::int
where status <> 'done'

-- name: fence_ids
-- The standby's sequence may stand before ids that the lost primary gave out; a destination has seen their epochs.
select setval('jobqueue.job_id_seq', nextval('jobqueue.job_id_seq') + 1000000)
