#!/bin/sh
# Cold reads of many storage keys at PostgreSQL: in a round trip each, and through pipelines; then the same by a C program
# that makes libpq's calls and nothing else (cold_floor.c), which shows what pipelines can save at all.
#
# Starts a PostgreSQL of its own, builds the modules and compiles cold.swift against them. All ways of reading take
# turns within one run, so that what else the machine does meets them all; what counts are the ratios.
#
#     Tests/Benchmarks/cold.sh [rounds]
set -eu
cd "$(dirname "$0")/../.."
programs=/usr/lib/postgresql/15/bin
directory=$(mktemp -d /tmp/token-broker-cold-XXXXXX)
as() { if [ "$(id -u)" = 0 ]; then setpriv --reuid=postgres --regid=postgres --clear-groups -- "$@"; else "$@"; fi; }
if [ "$(id -u)" = 0 ]; then chown postgres:postgres "$directory"; fi
stop() { as "$programs/pg_ctl" -D "$directory/data" -m immediate -w stop > /dev/null 2>&1 || true; rm -rf "$directory"; }
trap stop EXIT
trap 'exit 130' INT TERM

bin=$(Deploy/build token-broker)
modules="Postgres CredentialStore Reactor OAuth Cryptography HTTPCodec JSON"
objects=
for module in $modules; do objects="$objects $(echo "$bin/$module.build"/*.o)"; done
package=$(sed -n 's/.*"-package-name","\([^"]*\)".*/\1/p' .build/release.yaml | head -1)
# shellcheck disable=SC2086
swiftc -O -static-stdlib -swift-version 6 -package-name "$package" -I "$bin/Modules" \
    -Xcc "-fmodule-map-file=$bin/CLinux.build/module.modulemap" \
    -Xcc "-fmodule-map-file=$PWD/Sources/COpenSSL/module.modulemap" \
    -Xcc "-fmodule-map-file=$bin/CPostgres.build/module.modulemap" \
    -Xcc "-I$(pg_config --includedir)" \
    Tests/Benchmarks/cold.swift $objects "$bin"/CLinux.build/*.o "$bin"/CPostgres.build/*.o \
    -lssl -lcrypto -o "$directory/cold" >&2
cc -O2 -Wall -Wextra -I"$(pg_config --includedir)" Tests/Benchmarks/cold_floor.c -lpq -o "$directory/cold_floor"

as "$programs/initdb" -D "$directory/data" -U postgres -N -E UTF8 --locale=C -A trust > /dev/null
as "$programs/pg_ctl" -D "$directory/data" -w -l "$directory/log" -o "-c listen_addresses='' -k $directory" start > /dev/null
database="host=$directory user=postgres dbname=postgres"
"$directory/cold" "$database" "${1:-7}"
"$directory/cold_floor" "$database" "${1:-7}"
