-- Rules of other designs that need a statement of their own.

-- name: delete_job
-- Deleted on claim: the row is gone before the work is done.
delete from jobqueue.job where id = any (%(ids)s)

-- name: empty
truncate jobqueue.job, jobqueue.job_archive, jobqueue.job_key, jobqueue.incident restart identity
