#!/bin/sh
# Create a database and a role per client, and the roles `launcher` and `viewer`, which own nothing.
# The postgres image runs this on an empty volume, and docker/upgrade on an older one. It also sets
# the passwords.
set -eu
role() {
    psql -q -v ON_ERROR_STOP=1 -v name="$1" -v secret="/run/secrets/$1_password" -U postgres -d postgres <<'SQL'
\set password `cat :'secret'`
SELECT NOT EXISTS (SELECT FROM pg_roles WHERE rolname = :'name') AS is_new \gset
\if :is_new
CREATE ROLE :"name";
\endif
ALTER ROLE :"name" LOGIN PASSWORD :'password' NOSUPERUSER NOCREATEDB NOCREATEROLE;
ALTER ROLE :"name" SET timezone = 'UTC';
ALTER ROLE :"name" SET statement_timeout = '5min';
ALTER ROLE :"name" SET idle_in_transaction_session_timeout = '5min';
SQL
}
database() {
    psql -q -v ON_ERROR_STOP=1 -v name="$1" -U postgres -d postgres <<'SQL'
SELECT NOT EXISTS (SELECT FROM pg_database WHERE datname = :'name') AS is_new \gset
\if :is_new
CREATE DATABASE :"name" OWNER :"name" ENCODING 'UTF8' TEMPLATE template0;
\endif
REVOKE ALL ON DATABASE :"name" FROM PUBLIC;
SQL
}
for name in results mlflow mlflow_auth; do
    role "$name"
    database "$name"
done
role launcher
role viewer
psql -q -v ON_ERROR_STOP=1 -U postgres -d postgres \
    -c 'GRANT CONNECT ON DATABASE results TO launcher, viewer'
