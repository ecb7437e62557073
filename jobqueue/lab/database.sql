-- Statements of lab/database.py and lab/clock.py. {name} and {template} are filled in as quoted identifiers.

-- name: create_database
CREATE DATABASE {name} TEMPLATE {template};

-- name: drop_database
DROP DATABASE IF EXISTS {name} WITH (FORCE);

-- name: may_create_databases
SELECT rolcreatedb OR rolsuper FROM pg_catalog.pg_roles WHERE rolname = current_user;

-- name: server_version
SHOW server_version;

-- name: is_virtual
SELECT virtual FROM jobqueue.meta;

-- For the session, not the transaction: a clock that a rollback sets back would run backwards.
-- name: set_clock
SELECT pg_catalog.set_config('jobqueue.now', %s, false);
