#!/usr/bin/env python3
"""Runs what Deploy/compose.yaml describes, as processes on loopback, and logs a user in through it.

    Tests/DeployTests/topology.py directory    of token-broker and token-broker-provider, as built

The configuration of HAProxy, PgBouncer and PostgreSQL's roles, the variables, commands and secrets are those of the
compose file. Nothing is changed in them but where things are: `name:port` becomes an address of loopback, the
directories of containers become directories of this run.

As root, PostgreSQL and PgBouncer run as the user postgres, since they refuse root. Everything that was started ends
with this program, however that ends. Says what it has seen; ends with 1 and the logs where something is not so.
"""
import contextlib
import http.client
import json
import os
import pathlib
import pwd
import random
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "Deploy"
POSTGRES = pathlib.Path("/usr/lib/postgresql/15/bin")
# For anything that has to come true: processes that start, replicas that are taken in or out.
PATIENCE_S = 30


class Failure(Exception):
    pass


def expect(condition, text):
    if not condition:
        raise Failure(text)


def await_that(what, condition):
    """Polls until `condition` is true. It waits for other processes, which do not report when they are ready."""
    end = time.monotonic() + PATIENCE_S
    while True:
        with contextlib.suppress(OSError, http.client.HTTPException):
            if condition():
                return
        expect(time.monotonic() < end, f"not so after {PATIENCE_S} s: {what}")
        time.sleep(0.05)


class Answer:
    def __init__(self, response, body):
        self.status = response.status
        self.location = response.headers.get("Location")
        self.retry_after = response.headers.get("Retry-After")
        self.text = body.decode()

    @property
    def json(self):
        return json.loads(self.text)


class Topology:
    def __init__(self, programs):
        self.programs = pathlib.Path(programs).resolve()
        self.services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
        self.processes = {}
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="token-broker-topology-"))
        self.directory.chmod(0o755)
        self.secrets = self.directory / "secrets"
        self.ports = {
            "database:5432": 0, "pgbouncer:6432": 0, "broker-1:8080": 0, "broker-2:8080": 0,
            "load-balancer:8000": 0, "provider:8181": 0,
        }
        # Of those that the kernel does not give to clients: a service that starts again finds its port free.
        free = (port for port in random.sample(range(20000, 32000), 1000) if self.is_free(port))
        for name in self.ports:
            self.ports[name] = next(free)

    # --- From containers to loopback

    @staticmethod
    def is_free(port):
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) != 0

    def port(self, service):
        return next(port for name, port in self.ports.items() if name.startswith(service + ":"))

    def local(self, text, service):
        """A text of the compose file or of a file that it mounts, with the places of this run."""
        own = next((name for name in self.ports if name.startswith(service + ":")), "")
        if own:
            inside, port = own.rsplit(":", 1)[1], self.ports[own]
            for before in [f"0.0.0.0:{inside}", f":{inside}"]:
                text = re.sub(rf"(?<![\w.]){re.escape(before)}\b", f"127.0.0.1:{port}", text)
            text = text.replace("listen_addr = *", "listen_addr = 127.0.0.1")
            text = text.replace(f"listen_port = {inside}", f"listen_port = {port}")
        for name, port in self.ports.items():
            host, inside = name.rsplit(":", 1)
            text = re.sub(rf"\b{host}:{inside}\b", f"127.0.0.1:{port}", text)
            text = text.replace(f"localhost:{inside}", f"127.0.0.1:{port}")
            text = text.replace(f"host={host} port={inside}", f"host=127.0.0.1 port={port}")
        left = re.search(rf"\b({'|'.join(self.services)})(:| port=)\d+", text)
        expect(not left, f"{service}: {left and left[0]} is no place of this run")
        text = text.replace("/run/secrets/", f"{self.secrets}/")
        return text.replace("/var/lib/token-broker", f"{self.directory}/{service}")

    def mounted(self, service, name):
        """The path of a file that the compose file mounts into a service, with the places of this run."""
        volumes = [volume.split(":") for volume in self.services[service]["volumes"]]
        source = next(volume[0] for volume in volumes if volume[0].endswith("/" + name))
        path = self.directory / name
        path.write_text(self.local((DEPLOY / source).read_text(), service))
        path.chmod(0o644)
        return path

    # --- Processes

    def prefix(self, *options, as_postgres=False):
        """A command that another one is put behind."""
        if as_postgres and os.getuid() == 0:
            options += ("--reuid=postgres", "--regid=postgres", "--clear-groups")
        return ["setpriv", *options, "--"] if options else []

    def start(self, service, command, environment=None, as_postgres=False):
        # Killed with us: the kernel sees to it where we cannot.
        command = self.prefix("--pdeathsig=KILL", as_postgres=as_postgres) + command
        with (self.directory / f"{service}.log").open("ab") as log:
            self.processes[service] = subprocess.Popen(
                [str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"} | (environment or {}))

    def end(self, service, number=signal.SIGTERM):
        process = self.processes.pop(service)
        process.send_signal(number)
        try:
            return process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise Failure(f"{service} does not end") from None

    def close(self):
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def variables(self, service):
        found = self.services[service].get("environment", {})
        return {name: self.local(value, service) for name, value in found.items()}

    def connects(self, service):
        process = self.processes[service]
        expect(process.poll() is None, f"{service} ended by itself")
        with socket.create_connection(("127.0.0.1", self.port(service)), 2):
            return True

    def make_secrets(self):
        subprocess.run([DEPLOY / "compose/make-secrets", self.secrets, f"{os.getuid()}:{os.getgid()}"], check=True, timeout=60)
        for file in self.secrets.iterdir():
            text = self.local(file.read_text(), "")
            file.chmod(0o600)
            file.write_text(text)
            file.chmod(0o444)
        self.secrets.chmod(0o755)

    def make_database(self):
        """What the image's entry point does: a data directory, then the mounted SQL."""
        self.data = self.directory / "data"
        self.data.mkdir(mode=0o700)
        if os.getuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(self.data, user.pw_uid, user.pw_gid)
        options = shlex.split(self.services["database"]["environment"]["POSTGRES_INITDB_ARGS"])
        initdb = [POSTGRES / "initdb", "-D", self.data, "-U", "postgres", "--auth-local=trust", "--no-sync",
                  "--pwfile", self.secrets / "postgres_password", *options]
        done = subprocess.run(
            self.prefix(as_postgres=True) + initdb, capture_output=True, text=True, timeout=60)
        expect(done.returncode == 0, done.stderr)
        self.start_database()
        await_that("PostgreSQL answers", lambda: self.connects("database"))
        await_that("PostgreSQL is ready", lambda: subprocess.run(
            [POSTGRES / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port("database"))]).returncode == 0)
        password = (self.secrets / "postgres_password").read_text().strip()
        done = subprocess.run(
            [POSTGRES / "psql", "-q", "-v", "ON_ERROR_STOP=1", "-h", "127.0.0.1", "-p", str(self.port("database")),
             "-U", "postgres", "-d", "postgres", "-f", self.mounted("database", "roles.sql")],
            env=os.environ | {"PGPASSWORD": password}, capture_output=True, text=True, timeout=60)
        expect(done.returncode == 0, done.stderr)

    def start_database(self):
        self.start("database", [
            POSTGRES / "postgres", "-D", self.data, "-h", "127.0.0.1", "-p", self.port("database"), "-k", "",
            "-c", "fsync=off"], as_postgres=True)

    def start_pgbouncer(self):
        configuration = self.mounted("pgbouncer", "pgbouncer.ini")
        self.start("pgbouncer", ["pgbouncer", configuration], as_postgres=True)
        await_that("PgBouncer answers", lambda: self.connects("pgbouncer"))

    def migrate(self):
        arguments = self.services["migrate"]["command"]
        done = subprocess.run(
            [self.programs / "token-broker", *arguments], env=self.variables("migrate"), capture_output=True, text=True,
            timeout=60)
        expect(done.returncode == 0, f"migrate ended with {done.returncode}: {done.stdout}{done.stderr}")

    def start_provider(self):
        command = shlex.split(self.local(self.services["provider"]["command"], "provider"))
        self.start("provider", [self.programs / "token-broker-provider", *command])
        await_that("the provider answers", lambda: self.connects("provider"))

    def start_broker(self, name):
        (self.directory / name).mkdir(mode=0o700, exist_ok=True)
        # The image listens on every address of its container.
        listen = {"TOKEN_BROKER_LISTEN": f"127.0.0.1:{self.port(name)}"}
        self.start(name, [self.programs / "token-broker"], self.variables(name) | listen)
        await_that(f"{name} is ready", lambda: self.connects(name) and self.ask(name, "GET", "/readyz").status == 200)

    def start_load_balancer(self):
        configuration = self.mounted("load-balancer", "haproxy.cfg")
        # In the foreground; the image adds a master that restarts it.
        self.start("load-balancer", ["haproxy", "-db", "-f", configuration])
        await_that("the load balancer answers", lambda: self.connects("load-balancer"))
        await_that("both replicas are taken in", lambda: self.replicas_in() == 2)

    # --- Requests

    def ask(self, service, method, path, body=None, key=None, headers=None, timeout=20):
        connection = http.client.HTTPConnection("127.0.0.1", self.port(service), timeout=timeout)
        with contextlib.closing(connection):
            fields = dict(headers or {})
            if key:
                fields["Authorization"] = f"Bearer {key}"
            if body is not None and "Content-Type" not in fields:
                fields["Content-Type"] = "application/json"
                body = json.dumps(body)
            connection.request(method, path, body, fields)
            response = connection.getresponse()
            return Answer(response, response.read())

    def broker(self, method, path, body=None, **more):
        """Through the load balancer."""
        return self.ask("load-balancer", method, path, body, **more)

    def count(self, replica, route):
        """How many requests of a route a replica has answered."""
        text = self.ask(replica, "GET", "/metrics").text
        found = re.findall(rf'^token_broker_http_requests_total{{route="{re.escape(route)}".*}} (\d+)$', text, re.M)
        return sum(int(number) for number in found)

    def replicas_in(self):
        """How many replicas get the next requests."""
        before = {name: self.count(name, "/livez") for name in self.alive()}
        for _ in range(4):
            self.broker("GET", "/livez")
        # The load balancer itself asks for /livez once a second, too: four more are a share of eight requests.
        return sum(self.count(name, "/livez") - before[name] >= 2 for name in before)

    def alive(self):
        return [name for name in ["broker-1", "broker-2"] if name in self.processes]


class Stream:
    """Listens to /events until it ends, and keeps what has come and when."""

    def __init__(self, topology, key):
        self.connection = http.client.HTTPConnection("127.0.0.1", topology.port("load-balancer"), timeout=60)
        self.connection.request("GET", "/events", headers={"Authorization": f"Bearer {key}"})
        self.response = self.connection.getresponse()
        expect(self.response.status == 200, f"/events answers {self.response.status}")
        self.events = []
        self.thread = threading.Thread(target=self.collect, daemon=True)
        self.thread.start()

    def collect(self):
        with contextlib.suppress(OSError, ValueError, AttributeError, http.client.HTTPException):
            while line := self.response.readline():
                if line.startswith(b"event:"):
                    self.events.append(line[6:].strip().decode())

    def close(self):
        self.connection.sock.shutdown(socket.SHUT_RDWR)
        self.thread.join(PATIENCE_S)
        self.connection.close()


def log_in(topology, key, storage_key):
    """A login as a browser does it. Returns the replicas at which it began and ended."""
    before = {(name, route): topology.count(name, route) for name in topology.alive()
              for route in ["/login/initialize", "/login/callback"]}
    begun = topology.broker("POST", "/login/initialize", {"storage_key": storage_key}, key=key)
    expect(begun.status == 201, f"/login/initialize: {begun.status} {begun.text}")
    login_uri = urllib.parse.urlsplit(begun.json["login_uri"])
    expect(login_uri.port == topology.port("provider"), f"the login is at {begun.json['login_uri']}")

    polls = []
    path = f"/login/{begun.json['login_id']}?wait=20"
    # Two of them, so that the next request goes to the other replica again: one poll waits at each.
    pollers = [threading.Thread(target=lambda: polls.append(topology.broker("GET", path, key=key, timeout=30)))
               for _ in range(2)]
    for poller in pollers:
        poller.start()
    form = login_uri.query + "&user=ada&decision=approve"
    approved = topology.ask("provider", "POST", "/authorize", form,
                            headers={"Content-Type": "application/x-www-form-urlencoded"})
    callback = urllib.parse.urlsplit(approved.location)
    expect(callback.port == topology.port("load-balancer"), f"the provider leads to {approved.location}")
    ended = topology.broker("GET", f"{callback.path}?{callback.query}", headers={"Accept": "application/json"})
    expect(ended.status == 200, f"/login/callback: {ended.status} {ended.text}")
    for poller in pollers:
        poller.join(PATIENCE_S)
    outcomes = [poll.json.get("status") for poll in polls]
    expect(outcomes == ["completed", "completed"], f"the polls end with {[poll.text for poll in polls]}")

    def where(route):
        return [name for name in topology.alive() if topology.count(name, route) > before[name, route]]

    return where("/login/initialize"), where("/login/callback")


def prove(topology):
    topology.make_secrets()
    topology.make_database()
    topology.start_pgbouncer()
    topology.migrate()
    topology.start_provider()
    for name in ["broker-1", "broker-2"]:
        topology.start_broker(name)
    topology.start_load_balancer()
    print("PostgreSQL, PgBouncer, migrate, the provider, two replicas and the load balancer are up")

    admin = (topology.secrets / "admin_key").read_text().strip()
    provider = f"http://127.0.0.1:{topology.port('provider')}"
    made = topology.broker("PUT", "/tenants/demo", {
        "provider": "tidal", "client_id": "demo", "scopes": ["r_usr"], "login_service_base_uri": provider,
        "auth_service_base_uri": f"{provider}/v1", "certificate_pinning": False}, key=admin)
    expect(made.status == 201, f"/tenants/demo: {made.status} {made.text}")
    made = topology.broker("POST", "/tenants/demo/api-keys", {
        "name": "topology", "permissions": ["login", "credentials:read", "credentials:write", "events"]}, key=admin)
    expect(made.status == 201, f"api-keys: {made.status} {made.text}")
    key = made.json["api_key"]

    stream = Stream(topology, key)
    # Requests go to the replicas in turn, but which turn the last one of a login gets depends on when the polls come.
    for _ in range(10):
        began, ended = log_in(topology, key, "ada")
        expect(len(began) == 1 and len(ended) == 1, f"begun at {began}, ended at {ended}")
        if began != ended:
            break
    expect(began != ended, "ten logins have ended where they began")
    print(f"a login began at {began[0]} and ended at {ended[0]}; those who waited have heard of it")
    await_that("the stream has told of the login", lambda: "login.completed" in stream.events)
    stream.close()
    print("a stream of events came through as it was written")

    token = topology.broker("GET", "/credentials?storage_key=ada&level=user", key=key)
    expect(token.status == 200, f"/credentials: {token.status} {token.text}")
    for name in topology.alive():
        same = topology.ask(name, "GET", "/credentials?storage_key=ada", key=key)
        expect(same.json["token"] == token.json["token"], f"{name} gives another token")

    topology.end("broker-1", signal.SIGKILL)
    for _ in range(20):
        again = topology.broker("GET", "/credentials?storage_key=ada", key=key)
        expect(again.status == 200, f"after broker-1 was killed: {again.status} {again.text}")
    print("a replica was killed, and no reader noticed")
    topology.start_broker("broker-1")
    await_that("broker-1 is taken in again", lambda: topology.replicas_in() == 2)

    expect(topology.end("broker-2") == 0, "broker-2 does not end well at SIGTERM")
    for _ in range(20):
        again = topology.broker("GET", "/credentials?storage_key=ada", key=key)
        expect(again.status == 200, f"after broker-2 was stopped: {again.status} {again.text}")
    topology.start_broker("broker-2")
    await_that("broker-2 is taken in again", lambda: topology.replicas_in() == 2)
    print("a replica was stopped, and no reader noticed")

    # Both hold the credentials in memory.
    for name in topology.alive():
        expect(topology.ask(name, "GET", "/credentials?storage_key=ada", key=key).status == 200, f"{name} is cold")
    topology.end("database", signal.SIGINT)
    await_that("no replica is ready", lambda: all(
        topology.ask(name, "GET", "/readyz").status == 503 for name in topology.alive()))
    await_that("those that live are asked", lambda: topology.broker(
        "GET", "/credentials?storage_key=ada", key=key).status == 200)
    for _ in range(4):
        again = topology.broker("GET", "/credentials?storage_key=ada", key=key)
        expect(again.status == 200, f"without a database: {again.status} {again.text}")
    refused = topology.broker("PUT", "/tenants/other", {"client_id": "c"}, key=admin)
    expect(refused.status == 503 and refused.json["code"] == "storage_unavailable", f"{refused.status} {refused.text}")
    expect(refused.retry_after is not None, "503 without Retry-After")
    topology.start_database()
    await_that("what needs the database works again", lambda: topology.broker(
        "PUT", "/tenants/other", {"client_id": "c"}, key=admin).status in (200, 201))
    print("the database was away: tokens were given out, the rest was refused, and all of it works again")

    for name in topology.alive():
        topology.end(name)
    gone = topology.broker("GET", "/credentials?storage_key=ada", key=key)
    expect(gone.status == 503 and gone.json["code"] == "retryable_error" and gone.retry_after, f"{gone.status}")


def main():
    topology = Topology(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        prove(topology)
    except (Failure, subprocess.SubprocessError) as failure:
        for log in sorted(topology.directory.glob("*.log")):
            print(f"--- {log.name}\n{log.read_text(errors='replace')[-4000:]}")
        print(f"{type(failure).__name__}: {failure}")
        sys.exit(1)
    finally:
        topology.close()


if __name__ == "__main__":
    main()
