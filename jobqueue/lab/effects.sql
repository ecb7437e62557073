-- A destination of the lab's handlers: append-only and without a key, to count what it took in twice.

-- name: prepare_effects
create schema if not exists jobqueue_lab;
create table if not exists jobqueue_lab.effect (
    job_id bigint not null, epoch bigint not null, owner text not null, destination text not null,
    worker_clock timestamptz, at timestamptz not null default clock_timestamp());

-- name: record_effect
insert into jobqueue_lab.effect (job_id, epoch, owner, destination)
values (%(job_id)s, %(epoch)s, %(owner)s, %(destination)s)

-- name: record_effect_and_clock
-- The one place where a worker's own clock is written down: to show how wrong it was.
insert into jobqueue_lab.effect (job_id, epoch, owner, destination, worker_clock)
values (%(job_id)s, %(epoch)s, %(owner)s, %(destination)s, %(clock)s)

-- name: effects
select job_id, epoch, owner, destination, at from jobqueue_lab.effect order by at, job_id
