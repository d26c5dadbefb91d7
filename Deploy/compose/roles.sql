-- Run once, when the database is made. Who owns the tables changes them (token-broker migrate); who serves reads and
-- writes them, no more.

\set owner_password `cat /run/secrets/owner_password`
\set broker_password `cat /run/secrets/broker_password`

CREATE ROLE token_broker_owner LOGIN PASSWORD :'owner_password';
CREATE ROLE token_broker LOGIN PASSWORD :'broker_password';

-- A replica cannot send these itself through a pooler: an abandoned transaction must not hold its locks.
ALTER ROLE token_broker SET statement_timeout = '5s';
ALTER ROLE token_broker SET idle_in_transaction_session_timeout = '5s';
-- Rows that a policy hides would look like rows that were removed.
ALTER ROLE token_broker SET row_security = off;

CREATE DATABASE token_broker OWNER token_broker_owner;
\connect token_broker
REVOKE ALL ON DATABASE token_broker FROM PUBLIC;
GRANT CONNECT ON DATABASE token_broker TO token_broker;
ALTER DEFAULT PRIVILEGES FOR ROLE token_broker_owner
    GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO token_broker;
