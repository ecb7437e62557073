-- From version 1: the limits of single columns become domains, which an update of other columns does not check again.
-- Rewrites job, job_archive, job_key, effect and schedule under exclusive locks; loops wait meanwhile, or try again.

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

alter table jobqueue.job
  drop constraint "a type has 1 to 200 bytes", drop constraint "a payload has at most 1 MiB",
  drop constraint "a key has 1 to 512 bytes", drop constraint "an owner has 1 to 200 bytes",
  drop constraint "a schedule id has 1 to 400 bytes", drop constraint "an error has at most 16 KiB",
  drop constraint "a history has at most 50 entries", drop constraint "an epoch only counts up from 0",
  drop constraint "instants are finite",
  alter type type jobqueue.type_text, alter payload type jobqueue.payload_json,
  alter idempotency_key type jobqueue.key_text, alter run_at type jobqueue.instant,
  alter locked_by type jobqueue.owner_text, alter locked_until type jobqueue.instant,
  alter started_at type jobqueue.instant, alter last_error type jobqueue.error_text,
  alter created_at type jobqueue.instant, alter finished_at type jobqueue.instant,
  alter schedule_id type jobqueue.schedule_text, alter slot type jobqueue.instant,
  alter history type jobqueue.history_json,
  add constraint "an epoch only counts up from 0" check (epoch >= 0 and releases >= 0 and history_trimmed >= 0);

alter table jobqueue.job_archive
  alter type type jobqueue.type_text, alter payload type jobqueue.payload_json,
  alter idempotency_key type jobqueue.key_text, alter run_at type jobqueue.instant,
  alter locked_by type jobqueue.owner_text, alter locked_until type jobqueue.instant,
  alter started_at type jobqueue.instant, alter last_error type jobqueue.error_text,
  alter created_at type jobqueue.instant, alter finished_at type jobqueue.instant,
  alter schedule_id type jobqueue.schedule_text, alter slot type jobqueue.instant,
  alter history type jobqueue.history_json;

alter table jobqueue.job_key drop constraint "a key has 1 to 512 bytes", alter key type jobqueue.key_text;
alter table jobqueue.effect drop constraint "a key has 1 to 512 bytes", alter key type jobqueue.key_text;
alter table jobqueue.paused_type drop constraint "a type has 1 to 200 bytes", alter type type jobqueue.type_text;
alter table jobqueue.schedule
  drop constraint "a schedule id has 1 to 400 bytes", drop constraint "a type has 1 to 200 bytes",
  drop constraint "a payload has at most 1 MiB", drop constraint "instants are finite",
  alter id type jobqueue.schedule_text, alter job_type type jobqueue.type_text,
  alter payload type jobqueue.payload_json, alter next_run_at type jobqueue.instant,
  alter last_slot type jobqueue.instant, alter removed_at type jobqueue.instant;
