#!/bin/sh
# Create a database and a role per client. The postgres image runs this once, on an empty volume.
set -eu
for name in results mlflow mlflow_auth; do
    psql -v ON_ERROR_STOP=1 -v name="$name" -v secret="/run/secrets/${name}_password" -U postgres -d postgres <<'SQL'
\set password `cat :'secret'`
CREATE ROLE :"name" LOGIN PASSWORD :'password' NOSUPERUSER NOCREATEDB NOCREATEROLE;
ALTER ROLE :"name" SET timezone = 'UTC';
ALTER ROLE :"name" SET statement_timeout = '5min';
ALTER ROLE :"name" SET idle_in_transaction_session_timeout = '5min';
CREATE DATABASE :"name" OWNER :"name" ENCODING 'UTF8' TEMPLATE template0;
REVOKE ALL ON DATABASE :"name" FROM PUBLIC;
SQL
done
