-- From version 2: rules between columns become a domain over what they read of a row, which a session parses once.
-- Reads job under an exclusive lock, and rewrites nothing.
create type jobqueue.ruled as (
  status text, attempts integer, max_attempts integer, lease_losses integer, releases integer, history_trimmed integer,
  epoch bigint, locked_by text, locked_until timestamptz, started_at timestamptz, finished_at timestamptz,
  finished_epoch bigint, finished_by text);
create domain jobqueue.rules as jobqueue.ruled
  constraint "a status is one of six, and only a finished row has an end" check (
    case (value).status when 'ready' then (value).finished_at is null when 'running' then (value).finished_at is null
      when 'done' then (value).finished_at is not null when 'failed' then (value).finished_at is not null
      when 'dead' then (value).finished_at is not null when 'cancelled' then (value).finished_at is not null
      else false end)
  constraint "a ready row has an attempt left, and no row more than that" check (
    (value).attempts < (value).max_attempts or
    (value).attempts = (value).max_attempts and (value).status <> 'ready')
  constraint "a running row, and no other, has an owner, an epoch and an end" check (
    case when (value).locked_by is null then (value).status <> 'running' and (value).locked_until is null
      else (value).status = 'running' and (value).locked_until is not null and (value).started_at is not null
        and (value).epoch > 0 and (value).attempts > 0 end)
  constraint "a done row names the epoch that did it" check (
    (value).status <> 'done' or (value).finished_epoch is not null and (value).finished_by is not null)
  constraint "lost leases are attempts" check ((value).lease_losses >= 0 and (value).lease_losses <= (value).attempts)
  constraint "counts begin at 0, the most attempts at 1" check (
    (value).epoch >= 0 and (value).releases >= 0 and (value).history_trimmed >= 0
    and (value).max_attempts >= 1 and (value).max_attempts <= 10000);

alter table jobqueue.job
  drop constraint "a status is one of six", drop constraint "attempts are bounded",
  drop constraint "an epoch only counts up from 0", drop constraint "a ready row has an attempt left",
  drop constraint "a running row has an owner, an epoch and an end and has begun a",
  drop constraint "only a running row has an owner", drop constraint "only a finished row has an end",
  drop constraint "a done row names the epoch that did it", drop constraint "lost leases are attempts",
  add constraint "a row keeps the rules" check ((row(status, attempts, max_attempts, lease_losses, releases,
    history_trimmed, epoch, locked_by, locked_until, started_at, finished_at, finished_epoch, finished_by
    )::jobqueue.rules) is distinct from null);
