-- From version 3: an instant that Python can't read (one of the year 20000, by hand) ended every loop that came by it.
-- Reads the tables with instants while nobody may write to them, and rewrites nothing.
alter domain jobqueue.instant drop constraint "instants are finite";
alter domain jobqueue.instant add constraint "instants are finite, in the years 1 to 9999" check (
  value between '0001-01-01 00:00:00+00' and '9999-12-31 23:59:59.999999+00');
