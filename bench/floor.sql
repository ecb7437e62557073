-- The floor: the least that PostgreSQL needs for the same rows; pgbench's scripts, one transaction a pass.

-- name: schema
drop table if exists floor;
create table floor (id bigint generated always as identity primary key, status smallint not null default 0,
  run_at timestamptz not null default now(), owner text, epoch int not null default 0, payload text not null);
create index floor_ready on floor (run_at, id) where status = 0;

-- name: fill
insert into floor (payload) select '{"n":1}' from generate_series(1, %(n)s);

-- name: insert
insert into floor (payload) values ('{"n":1}');

-- name: insert_payload
insert into floor (payload) values (%s)

-- The claim, and in a second transaction the completion, of a batch.
-- name: drain
with c as materialized (select id from floor where status = 0 and run_at <= now() order by run_at, id limit 200
  for update skip locked),
u as (update floor set status = 1, owner = 'w', epoch = epoch + 1 from c where floor.id = c.id returning floor.id)
select coalesce(array_agg(id), '{}') as ids from u \gset
update floor set status = 2 from unnest(:ids::bigint[]) as x(id) where floor.id = x.id and floor.status = 1;

-- name: left_over
select count(*) from floor where status = 0;

-- name: copy
copy floor (payload) from stdin
