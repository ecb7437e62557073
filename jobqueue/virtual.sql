-- Lab only: the clock follows the session setting jobqueue.now. Same signature and volatility, so every plan keeps its
-- shape. Unset is an error, never the real time; with nullif(setting, '') the clock would be NULL after a SET LOCAL
-- ended, and every comparison silently false.
create or replace function jobqueue.now() returns timestamptz language sql stable parallel safe
  return pg_catalog.current_setting('jobqueue.now', false)::timestamptz;

-- A throw-away database need not survive a crash of its machine.
create or replace function jobqueue.durable() returns boolean language sql volatile return true;
