#!/usr/bin/env python3
"""What a refresh, a code exchange and a cold read cost the broker itself, in CPU microseconds, user and kernel apart, and how
many were answered in a second.

Starts the broker on the embedded store and on PostgreSQL, with the development provider over plain HTTP and behind nginx
with TLS, on connections that are kept alive. The clock of the operating system for each process counts, so that waiting
for the provider, the database and the disk does not. What the request itself costs without the refresh, a warm read, is
told beside it, and so are a refresh whose access token is verified (a JWT, as those that are not verified), and, with PostgreSQL and plain HTTP, the same calls by a C program that does nothing else
(refresh_floor.c): the least that any program must do.

    Tests/Benchmarks/cold_refresh.py [--broker PROGRAM] [--provider PROGRAM] [--count N] [--rounds N] [--stores ...]
"""

import argparse
import concurrent.futures
import html
import http.client
import json
import os
import pwd
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time
import urllib.parse

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
POSTGRES = "/usr/lib/postgresql/15/bin"
TICK = os.sysconf("SC_CLK_TCK")
KEYS = 8


def free_port():
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


class Processes:
    """Programs that end with this one."""

    def __init__(self):
        self.running = []

    def start(self, arguments, environment=None, **options):
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TOKEN_BROKER_")} | (environment or {})
        process = subprocess.Popen(arguments, env=environment, start_new_session=True, **options)
        self.running.append(process)
        return process

    def stop(self, process):
        self.running.remove(process)
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def stop_all(self):
        for process in reversed(list(self.running)):
            self.stop(process)


def cpu(process):
    """User and kernel time of a process so far, in microseconds."""
    with open(f"/proc/{process.pid}/stat", encoding="ascii") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    total = 0
    for task in os.listdir(f"/proc/{process.pid}/task"):
        with open(f"/proc/{process.pid}/task/{task}/schedstat", encoding="ascii") as file:
            total += int(file.read().split()[0]) / 1e3
    # The scheduler counts nanoseconds, but does not tell them apart; the kernel tells user from kernel by sampling.
    user, system = int(fields[11]), int(fields[12])
    return total, user * 1e6 / TICK, system * 1e6 / TICK


class Client:
    """One kept-alive connection."""

    def __init__(self, port, key):
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.key = key

    def ask(self, method, path, body=None, headers=None, statuses=(200, 201)):
        fields = {"Authorization": f"Bearer {self.key}"} | (headers or {})
        content = None
        if body is not None:
            content = json.dumps(body)
            fields["Content-Type"] = "application/json"
        self.connection.request(method, path, content, fields)
        response = self.connection.getresponse()
        content = response.read()
        if response.status not in statuses:
            raise SystemExit(f"{method} {path}: {response.status} {content.decode(errors='replace')}")
        return response, content


class Provider:
    def __init__(self, processes, program, directory, tls):
        self.port = free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        address = f"127.0.0.1:{self.port}"
        self.ca = None
        if tls:
            self.tls_port = free_port()
            self.base = f"https://localhost:{self.tls_port}"
            self.ca = make_certificate(directory)
        processes.start(
            [program, "--listen", address, "--public-base-url", self.base, "--profile", "rfc", "--access-tokens", "jwt",
             "--client", "bench:secret"],
            stdout=subprocess.DEVNULL)
        if tls:
            self.start_nginx(processes, directory)
        wait_for_port(self.port)

    def start_nginx(self, processes, directory):
        config = os.path.join(directory, "nginx.conf")
        with open(config, "w", encoding="ascii") as file:
            file.write(f"""
                daemon off; worker_processes 1; pid {directory}/nginx.pid; error_log {directory}/nginx.log;
                events {{ worker_connections 256; }}
                http {{
                    access_log off; client_body_temp_path {directory}/body; proxy_temp_path {directory}/proxy;
                    fastcgi_temp_path {directory}/f; uwsgi_temp_path {directory}/u; scgi_temp_path {directory}/s;
                    keepalive_requests 100000000; keepalive_timeout 300s;
                    upstream provider {{ server 127.0.0.1:{self.port}; keepalive 32; keepalive_requests 100000000; }}
                    server {{
                        listen 127.0.0.1:{self.tls_port} ssl; server_name localhost;
                        ssl_certificate {directory}/server.crt; ssl_certificate_key {directory}/server.key;
                        location / {{ proxy_pass http://provider; proxy_http_version 1.1;
                                      proxy_set_header Connection ""; proxy_set_header Host $http_host; }}
                    }}
                }}""")
        processes.start(["nginx", "-c", config, "-e", os.path.join(directory, "nginx.log")])
        wait_for_port(self.tls_port)

    def session(self, user):
        """A login without the broker: a token response."""
        redirect = "http://127.0.0.1:8080/callback"
        code, _ = self.approve(self.authorize_uri(redirect), user)
        status, _, content = self.direct("POST", "/token", urllib.parse.urlencode({
            "grant_type": "authorization_code", "code": code, "redirect_uri": redirect, "client_id": "bench",
            "client_secret": "secret", "code_verifier": "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"}))
        if status != 200:
            raise SystemExit(f"token: {status} {content}")
        return json.loads(content)

    def authorize_uri(self, redirect):
        return "/authorize?" + urllib.parse.urlencode({
            "response_type": "code", "client_id": "bench", "redirect_uri": redirect, "state": "s", "scope": "r_usr",
            "code_challenge": "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM", "code_challenge_method": "S256"})

    def approve(self, path, user):
        """Submits the login page's form; the code and the state that come back."""
        _, _, page = self.direct("GET", path)
        page = page.decode()
        action = html.unescape(re.search(r'<form[^>]*action="([^"]*)"', page).group(1))
        fields = {html.unescape(n): html.unescape(v) for n, v in re.findall(
            r'<input type="hidden" name="([^"]*)" value="([^"]*)"', page)}
        target = urllib.parse.urlsplit(action)
        status, headers, content = self.direct(
            "POST", target.path + (f"?{target.query}" if target.query else ""),
            urllib.parse.urlencode(fields | {"user": user, "decision": "approve"}))
        location = headers.get("Location")
        if location is None:
            raise SystemExit(f"the provider did not redirect: {status} {content.decode()}")
        query = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(location).query))
        return query["code"], urllib.parse.urlsplit(location).query

    def direct(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        fields = {"Content-Type": "application/x-www-form-urlencoded"} if body else {}
        connection.request(method, path, body, fields)
        response = connection.getresponse()
        content = response.read()
        connection.close()
        return response.status, response.headers, content


def make_certificate(directory):
    run = lambda *arguments: subprocess.run(arguments, check=True, cwd=directory, stderr=subprocess.DEVNULL)
    curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    run("openssl", "req", *curve, "-x509", "-days", "30", "-subj", "/CN=bench", "-keyout", "ca.key", "-out", "ca.crt")
    with open(os.path.join(directory, "extensions"), "w", encoding="ascii") as file:
        file.write("subjectAltName=DNS:localhost\n")
    run("openssl", "req", *curve, "-subj", "/CN=localhost", "-keyout", "server.key", "-out", "server.csr")
    run("openssl", "x509", "-req", "-in", "server.csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
        "-days", "30", "-extfile", "extensions", "-out", "server.crt")
    return os.path.join(directory, "ca.crt")


def wait_for_port(port):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise SystemExit(f"nothing listens on port {port}")


class Database:
    def __init__(self, directory):
        self.directory = os.path.join(directory, "postgres")
        os.makedirs(self.directory)
        self.prefix = []
        if os.getuid() == 0:
            user = pwd.getpwnam("postgres")
            os.chown(self.directory, user.pw_uid, user.pw_gid)
            os.chmod(directory, 0o755)
            self.prefix = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]
        self.run("initdb", "-D", f"{self.directory}/data", "-U", "postgres", "-N", "-E", "UTF8", "--locale=C", "-A", "trust")
        self.run("pg_ctl", "-D", f"{self.directory}/data", "-w", "-l", f"{self.directory}/log", "-o",
                 f"-c listen_addresses='' -k {self.directory}", "start")
        self.uri = f"host={self.directory} user=postgres dbname=postgres"

    def run(self, program, *arguments):
        subprocess.run([*self.prefix, f"{POSTGRES}/{program}", *arguments], check=True, stdout=subprocess.DEVNULL)

    def stop(self):
        self.run("pg_ctl", "-D", f"{self.directory}/data", "-m", "immediate", "-w", "stop")


class Server:
    """What is measured: a process with a port."""

    def __init__(self, process, port, key):
        self.process, self.port, self.key = process, port, key

    def measure(self, count, callers, action, key=None):
        """CPU microseconds of each of `count` actions: in all, user, kernel; and the actions per second."""
        clients = [Client(self.port, key or self.key) for _ in range(callers)]
        beginning, before = time.monotonic(), cpu(self.process)
        with concurrent.futures.ThreadPoolExecutor(callers) as pool:
            runs = [pool.submit(lambda n=n: [action(clients[n], i) for i in range(n, count, callers)])
                    for n in range(callers)]
            for run in runs:
                run.result()
        after, end = cpu(self.process), time.monotonic()
        total, user, system = ((b - a) / count for a, b in zip(before, after))
        share = user / (user + system) if user + system else 0
        return total, total * share, total * (1 - share), count / (end - beginning)


class Floor(Server):
    def __init__(self, processes, directory, provider, database, tokens):
        program, port = os.path.join(directory, "refresh_floor"), free_port()
        include = subprocess.run(["pg_config", "--includedir"], check=True, capture_output=True, text=True).stdout.strip()
        subprocess.run(["cc", "-O2", f"-I{include}", f"{ROOT}/Tests/Benchmarks/refresh_floor.c", "-lpq", "-o", program],
                       check=True)
        super().__init__(processes.start(
            [program, str(port), database.uri, str(provider.port), *tokens], stdout=subprocess.DEVNULL), port, "none")
        wait_for_port(port)


class Broker(Server):
    def __init__(self, processes, program, directory, provider, database, level):
        self.processes, self.provider = processes, provider
        self.port = free_port()
        key = subprocess.run([program, "keys", "generate"], check=True, capture_output=True, text=True).stdout.strip()
        settings = {
            "TOKEN_BROKER_ADMIN_KEY": "the-admin-key-of-the-benchmarks-0", "TOKEN_BROKER_MASTER_KEYS": key,
            "TOKEN_BROKER_EVENT_LOOPS": "1", "TOKEN_BROKER_ALLOW_INSECURE_PROVIDERS": "true",
            "TOKEN_BROKER_LISTEN": f"127.0.0.1:{self.port}", "TOKEN_BROKER_LOG_LEVEL": level,
            "TOKEN_BROKER_WRITE_RATE": "0", "TOKEN_BROKER_LOGIN_RATE": "0",
            "TOKEN_BROKER_PUBLIC_BASE_URL": "http://127.0.0.1:8080",
        }
        if provider.ca:
            settings["TOKEN_BROKER_TRUSTED_CA_FILE"] = provider.ca
        if database:
            settings["TOKEN_BROKER_DATABASE_URL"] = database.uri
        else:
            settings["TOKEN_BROKER_DATA_DIR"] = tempfile.mkdtemp(dir=directory)
        self.log = open(os.path.join(directory, "broker.log"), "ab")
        process = processes.start([program], settings, stdout=self.log, stderr=self.log)
        wait_for_port(self.port)
        admin = Client(self.port, "the-admin-key-of-the-benchmarks-0")
        tenant = {
            "provider": "oidc", "client_id": "bench", "client_secret": "secret", "scopes": ["r_usr"],
            "allowed_redirect_uris": ["http://127.0.0.1:8080/end"]}
        endpoints = {"authorization": f"{provider.base}/authorize", "token": f"{provider.base}/token"}
        keys = {}
        for name, members in [("bench", {"issuer": provider.base, "endpoints": endpoints}), ("verified", {
                "issuer": provider.base, "token_verification": {"access_token": {"scope": "r_usr"}}})]:
            admin.ask("PUT", f"/tenants/{name}", tenant | members)
            _, made = admin.ask("POST", f"/tenants/{name}/api-keys", {
                "name": "bench", "permissions": ["credentials:read", "credentials:write", "login"]})
            keys[name] = json.loads(made)["api_key"]
        super().__init__(process, self.port, keys["bench"])
        self.client = Client(self.port, self.key)
        self.verifying = Client(self.port, keys["verified"])

    def store(self, client, storage_key, session):
        client.ask("PUT", "/credentials", {
            "storage_key": storage_key, "refresh_token": session["refresh_token"],
            "credentials": {"client_id": "bench", "granted_scopes": ["r_usr"], "user_id": "1",
                            "expires": "2036-01-01T00:00:00Z", "token": session["access_token"]}})

    def refresh(self, client, storage_key):
        client.ask("GET", f"/credentials?storage_key={storage_key}&policy=local_force_refresh")

    def read(self, client, storage_key):
        client.ask("GET", f"/credentials?storage_key={storage_key}")

    def begin_login(self, number):
        _, begun = self.client.ask("POST", "/login/initialize", {
            "storage_key": f"login-{number}", "redirect_uri": "http://127.0.0.1:8080/end"})
        return json.loads(begun)["login_uri"]

    def approve(self, uri, number):
        target = urllib.parse.urlsplit(uri)
        return self.provider.approve(f"{target.path}?{target.query}", f"user-{number}")[1]


def row(*cells):
    print("".join(f"{cell:>{34 if index == 0 else 11}}" for index, cell in enumerate(cells)), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--broker", default=f"{ROOT}/.build/release/token-broker")
    parser.add_argument("--provider", default=f"{ROOT}/.build/release/token-broker-provider")
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--level", default="info")
    parser.add_argument("--stores", nargs="+", default=["files", "postgres"])
    parser.add_argument("--schemes", nargs="+", default=["http", "https"])
    parser.add_argument("--perf", help="where perf writes its record of the refreshes")
    arguments = parser.parse_args()
    directory = tempfile.mkdtemp(prefix="token-broker-cold-")
    processes = Processes()
    database = None
    try:
        if "postgres" in arguments.stores:
            database = Database(directory)
        row("CPU microseconds of the broker", "all", "user", "kernel", "in 1 s")
        for scheme in arguments.schemes:
            provider = Provider(processes, arguments.provider, directory, scheme == "https")
            for store in arguments.stores:
                broker = Broker(
                    processes, arguments.broker, directory, provider, database if store == "postgres" else None,
                    arguments.level)
                floor = None
                if store == "postgres" and scheme == "http":
                    tokens = [provider.session(f"floor-{number}")["refresh_token"] for number in range(KEYS)]
                    floor = Floor(processes, directory, provider, database, tokens)
                measure(broker, floor, f"{store}, {scheme}", arguments)
                processes.stop(broker.process)
                if floor:
                    processes.stop(floor.process)
    finally:
        processes.stop_all()
        if database:
            database.stop()
        shutil.rmtree(directory, ignore_errors=True)


def measure(broker, floor, name, arguments):
    keys = [f"key-{number}" for number in range(KEYS)]
    for client in (broker.client, broker.verifying):
        for key in keys:
            broker.store(client, key, broker.provider.session(key))
        for key in keys:
            broker.refresh(client, key)
    perf = None
    if arguments.perf:
        perf = subprocess.Popen(["perf", "record", "-F", "2999", "-g", "-p", str(broker.process.pid), "-o",
                                 f"{arguments.perf}.{name.replace(', ', '.')}"], stderr=subprocess.DEVNULL)
        time.sleep(1)
    for callers in (1, 8):
        figures = {"warm read": [], "refresh": [], "refresh, verified": []}
        for _ in range(arguments.rounds):
            figures["warm read"].append(broker.measure(
                arguments.count, callers, lambda c, i: broker.read(c, keys[i % len(keys)])))
            figures["refresh"].append(broker.measure(
                arguments.count, callers, lambda c, i: broker.refresh(c, keys[i % len(keys)])))
            figures["refresh, verified"].append(broker.measure(
                arguments.count, callers, lambda c, i: broker.refresh(c, keys[i % len(keys)]), broker.verifying.key))
            if floor:
                figures.setdefault("the calls alone", []).append(floor.measure(
                    arguments.count, callers, lambda c, i: broker.refresh(c, keys[i % len(keys)])))
        for what, costs in figures.items():
            row(f"{name}: {what}, {callers} callers",
                *(f"{statistics.median(cost[part] for cost in costs):.0f}" for part in range(4)))
    if perf:
        perf.send_signal(signal.SIGINT)
        perf.wait()
    count = max(50, arguments.count // 4)
    broker.client = Client(broker.port, broker.key)
    queries = [broker.approve(broker.begin_login(number), number) for number in range(count)]
    row(f"{name}: code exchange", *(f"{part:.0f}" for part in broker.measure(
        count, 1, lambda c, i: c.ask("POST", "/login/finalize", {"login_response_query": queries[i]}))))


if __name__ == "__main__":
    main()
