#!/usr/bin/env bash
# patroni 3.0.2-1 with PostgreSQL 15 and etcd (Debian 12), without synchronous mode: a switchover to a standby that does not
# receive the primary's changes is carried out, and rows that were committed before it are gone.
#
# The primary is well and is shut down in order, so one would guess that the standby gets all of its changes first, or that the
# switchover is refused. But the standby has only to be less than `maximum_lag_on_failover` (1 MB unless set) behind; with a limit
# of 100 bytes, the same switchover fails. Here the primary's pg_hba.conf refuses replication, 100 rows are committed, and the
# standby is promoted without them. The list of the members shows the same for a standby that streams and for one that does not:
# running, 0 MB behind.
#
# Output seen:
#   streaming:     the standby is listed as ('running', 0)
#   not streaming: the standby is listed as ('running', 0)
#   rows before the switchover: 100
#   Successfully switched over to "n2"
#   rows after the switchover:  0
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
mkdir "$directory/packages" "$directory/root" "$directory/home"
cd "$directory/packages"
wanted=(patroni=3.0.2-1 etcd-server postgresql-15 postgresql-client-15 libpq5 python3-psycopg2 python3-etcd)
apt-get -s --no-install-recommends install "${wanted[@]}" 2>/dev/null |
    awk -v wanted=" ${wanted[*]%%=*} " '$1 == "Inst" && $3 !~ /^\[/ && !index(wanted, " " $2 " ") {print $2}' |
    xargs apt-get -qq -o APT::Sandbox::User=root download "${wanted[@]}"
for package in *.deb; do dpkg-deb -x "$package" "$directory/root"; done
chmod 755 "$directory"
# PostgreSQL refuses to run as root.
chown nobody "$directory/home"
cat >"$directory/finding.py" <<'PYTHON'
import glob, http.client, json, os, signal, socket, subprocess, sys, time

HOME, ROOT = os.path.abspath("home"), os.path.abspath("root")
PROGRAMS = ROOT + "/usr/lib/postgresql/15/bin"
AS_USER = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups", "--pdeathsig=TERM", "--"]
ENVIRONMENT = {
    "PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "HOME": HOME, "PYTHONPATH": ROOT + "/usr/lib/python3/dist-packages",
    "LD_LIBRARY_PATH": ":".join(glob.glob(ROOT + "/usr/lib/*-linux-gnu"))}
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(6)]
ETCD, PEER, *PORTS = [each.getsockname()[1] for each in sockets]
for each in sockets:
    each.close()
started = []


def start(name, command):
    with open(f"{name}.log", "wb") as log:
        started.append(subprocess.Popen(AS_USER + command, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=log, stderr=log))


def wait_for(what, condition):
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            if condition():
                return
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(0.2)
    raise SystemExit(f"{what}: not within 60 s")


def left_alone():
    found = []
    for path in glob.glob("/proc/[0-9]*/cmdline"):
        try:
            with open(path) as file:
                if f"{HOME}/n" in file.read():
                    found.append(int(path.split("/")[2]))
        except OSError:
            continue
    return found


class Node:
    def __init__(self, name, port, api):
        self.name, self.port, self.api = name, port, api
        configuration = {
            "scope": "finding", "name": name, "etcd3": {"hosts": f"127.0.0.1:{ETCD}"},
            "restapi": {"listen": f"127.0.0.1:{api}", "connect_address": f"127.0.0.1:{api}"},
            "bootstrap": {
                "dcs": {"ttl": 20, "loop_wait": 2, "retry_timeout": 5},
                "initdb": [{"encoding": "UTF8"}, {"locale": "C"}],
                "pg_hba": ["host all all 127.0.0.1/32 trust", "host replication all 127.0.0.1/32 trust"]},
            "postgresql": {
                "listen": f"127.0.0.1:{port}", "connect_address": f"127.0.0.1:{port}", "data_dir": f"{HOME}/{name}",
                "bin_dir": PROGRAMS, "pgpass": f"{HOME}/{name}.pass", "parameters": {"unix_socket_directories": ""},
                "authentication": {
                    "superuser": {"username": "postgres", "password": "p"},
                    "replication": {"username": "replicator", "password": "p"}}}}
        with open(f"{name}.yml", "w") as file:
            json.dump(configuration, file)
        start(name, ["/usr/bin/python3", ROOT + "/usr/bin/patroni", f"{name}.yml"])

    def answers(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.api, timeout=5)
        connection.request("GET", path)
        return connection.getresponse().status == 200

    def query(self, statement):
        command = [f"{PROGRAMS}/psql", "-XAtqc", statement, f"postgresql://postgres@127.0.0.1:{self.port}/postgres"]
        return subprocess.run(command, env=ENVIRONMENT, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def ctl(*arguments):
    command = ["/usr/bin/python3", ROOT + "/usr/bin/patronictl", "-c", "n1.yml", *arguments]
    return subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True).stdout


def state(node):
    member = next(member for member in json.loads(ctl("list", "-f", "json")) if member["Member"] == node.name)
    return member["State"], member["Lag in MB"]


try:
    start("etcd", [
        ROOT + "/usr/bin/etcd", "--data-dir", HOME + "/etcd", "--listen-client-urls", f"http://127.0.0.1:{ETCD}",
        "--advertise-client-urls", f"http://127.0.0.1:{ETCD}", "--listen-peer-urls", f"http://127.0.0.1:{PEER}",
        "--initial-advertise-peer-urls", f"http://127.0.0.1:{PEER}", "--initial-cluster", f"default=http://127.0.0.1:{PEER}"])
    primary = Node("n1", PORTS[0], PORTS[1])
    wait_for("a primary", lambda: primary.answers("/primary"))
    standby = Node("n2", PORTS[2], PORTS[3])
    wait_for("a standby", lambda: primary.query("SELECT state FROM pg_stat_replication") == "streaming")
    primary.query("CREATE TABLE rows (i int)")
    wait_for("the table at the standby", lambda: standby.query("SELECT to_regclass('rows')") == "rows")
    time.sleep(4)
    print("streaming:     the standby is listed as", state(standby))

    with open(f"{HOME}/n1/pg_hba.conf") as file:
        rules = file.read()
    with open(f"{HOME}/n1/pg_hba.conf", "w") as file:
        file.write("host replication all all reject\n" + rules)
    primary.query("SELECT pg_reload_conf(), pg_terminate_backend(pid) FROM pg_stat_replication")
    wait_for("the end of streaming", lambda: primary.query("SELECT count(*) FROM pg_stat_replication") == "0")
    primary.query("INSERT INTO rows SELECT generate_series(1, 100)")
    time.sleep(6)
    listed = state(standby)
    print("not streaming: the standby is listed as", listed)
    print("rows before the switchover:", primary.query("SELECT count(*) FROM rows"))
    answer = ctl("switchover", "--master", "n1", "--candidate", "n2", "--force")
    done = [line.split(" ", 2)[2] for line in answer.splitlines() if "witched over" in line]
    print(*(done or [answer]))
    wait_for("a new primary", lambda: standby.answers("/primary"))
    left = standby.query("SELECT count(*) FROM rows")
    print("rows after the switchover: ", left)
    sys.exit(0 if done and left == "0" and listed == ("running", 0) else 1)
finally:
    # The nodes first, and etcd last.
    for process in reversed(started):
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    # A PostgreSQL that a node had just started may have been left alone. Only those have this folder in their command.
    while processes := left_alone():
        for process in processes:
            os.kill(process, signal.SIGQUIT)
        time.sleep(0.2)
PYTHON
cd "$directory" && python3 finding.py
