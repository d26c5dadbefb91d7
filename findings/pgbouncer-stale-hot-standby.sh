#!/usr/bin/env bash
# pgbouncer 1.18.0-1+deb12u1 before PostgreSQL 15 (Debian 12): PgBouncer tells each new client whether the server is a standby
# from what the first server connection of the pool told, also after the server was promoted and after it was started anew.
#
# PostgreSQL reports `in_hot_standby` at the start of a connection and at each change, and libpq decides `target_session_attrs`
# by it. One would guess that a client behind PgBouncer sees the server's present value. Here a server is promoted: statements
# through the pool write, and yet the pool's port is refused as read-only to every new client that asks for read-write. New
# connections from PgBouncer to the server do not change this; RECONNECT in its console does.
#
# Output seen:
#   standby, any session:                       in recovery: t
#   promoted, any session:                      in recovery: f
#   promoted, read-write, past PgBouncer:       in recovery: f
#   promoted, read-write, through PgBouncer:    session is read-only
#   server restarted, any session:              in recovery: f
#   server restarted, read-write:               session is read-only
#   after RECONNECT, read-write:                in recovery: f
set -euo pipefail
directory=$(mktemp -d)
pooler=
# PostgreSQL and PgBouncer refuse to run as root.
as_user() { setpriv --reuid=nobody --regid=nogroup --clear-groups env LD_LIBRARY_PATH="$libraries" "$@"; }
postgres() { as_user "$programs/pg_ctl" -s -D "$directory/home/data" -l "$directory/home/log" -w -m fast "$@"; }
stop() {
    if [ -n "$pooler" ]; then
        kill "$pooler"
        wait "$pooler" || true
    fi
    if [ -f "$directory/home/data/postmaster.pid" ]; then postgres stop; fi
    rm -rf "$directory"
}
trap stop EXIT
mkdir "$directory/packages" "$directory/root" "$directory/home"
cd "$directory/packages"
wanted=(pgbouncer=1.18.0-1+deb12u1 postgresql-15 postgresql-client-15 libpq5)
apt-get -s --no-install-recommends install "${wanted[@]}" 2>/dev/null |
    awk -v wanted=" ${wanted[*]%%=*} " '$1 == "Inst" && $3 !~ /^\[/ && !index(wanted, " " $2 " ") {print $2}' |
    xargs apt-get -qq -o APT::Sandbox::User=root download "${wanted[@]}"
for package in *.deb; do dpkg-deb -x "$package" "$directory/root"; done
cd "$directory"
chmod 755 "$directory"
chown nobody home
programs=$directory/root/usr/lib/postgresql/15/bin
libraries=$(printf '%s:' "$directory"/root/usr/lib/*-linux-gnu)
read -r database pool < <(python3 -c '
import socket
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(each.getsockname()[1] for each in sockets))')

as_user "$programs/initdb" -D home/data -U postgres -A trust -N >initdb.log
printf '%s\n' "listen_addresses = '127.0.0.1'" "port = $database" "unix_socket_directories = ''" >>home/data/postgresql.conf
touch home/data/standby.signal
chown nobody home/data/standby.signal
postgres start
cat >pgbouncer.ini <<INI
[databases]
postgres = host=127.0.0.1 port=$database user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = $pool
unix_socket_dir =
auth_type = any
admin_users = postgres
pool_mode = transaction
INI
# Without a function between, so that the identifier is that of PgBouncer itself.
setpriv --reuid=nobody --regid=nogroup --clear-groups --pdeathsig TERM env LD_LIBRARY_PATH="$libraries" \
    root/usr/sbin/pgbouncer -q pgbouncer.ini &
pooler=$!
through=postgresql://postgres@127.0.0.1:$pool/postgres
past=postgresql://postgres@127.0.0.1:$database/postgres
for _ in $(seq 100); do
    if as_user "$programs/pg_isready" -q -d "$through"; then break; fi
    sleep 0.1
done

failed=0
ask() {
    local what=$1 uri=$2 expected=$3 answer
    if answer=$(as_user "$programs/psql" -XAtq "$uri" -c "SELECT pg_is_in_recovery()" 2>&1); then
        answer="in recovery: $answer"
    else
        answer=${answer##*: }
    fi
    printf '%-43s %s\n' "$what:" "$answer"
    if [ "$answer" != "$expected" ]; then failed=1; fi
}
ask "standby, any session" "$through" "in recovery: t"
postgres promote
ask "promoted, any session" "$through" "in recovery: f"
ask "promoted, read-write, past PgBouncer" "$past?target_session_attrs=read-write" "in recovery: f"
ask "promoted, read-write, through PgBouncer" "$through?target_session_attrs=read-write" "session is read-only"
postgres restart
ask "server restarted, any session" "$through" "in recovery: f"
ask "server restarted, read-write" "$through?target_session_attrs=read-write" "session is read-only"
as_user "$programs/psql" -XAtq "postgresql://postgres@127.0.0.1:$pool/pgbouncer" -c RECONNECT
ask "after RECONNECT, read-write" "$through?target_session_attrs=read-write" "in recovery: f"
exit "$failed"
