-- From version 2: rules between columns become a domain over what they read of a row, which a session parses once.
-- Reads job under an exclusive lock, and rewrites nothing.
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

alter table jobqueue.job
  drop constraint "a status is one of six", drop constraint "attempts are bounded",
  drop constraint "an epoch only counts up from 0", drop constraint "a ready row has an attempt left",
  drop constraint "a running row has an owner, an epoch and an end and has begun a",
  drop constraint "only a running row has an owner", drop constraint "only a finished row has an end",
  drop constraint "a done row names the epoch that did it", drop constraint "lost leases are attempts",
  add constraint "a row keeps the rules" check ((row(epoch, attempts, max_attempts, lease_losses, releases,
    history_trimmed, locked_by is not null, locked_until is not null, started_at is not null, finished_at is not null,
    finished_epoch is not null and finished_by is not null, status)::jobqueue.rules) is distinct from null);
