#!/usr/bin/env python3
"""Holds the clients of Deploy/clients against a real broker.

    Tests/DeployTests/clients.py PROGRAMS [python go java typescript swift]

PROGRAMS is the directory of token-broker and token-broker-provider. Each language has a driver in Tests/DeployTests/clients
that reads commands from standard input and calls the client. Between the client and the broker is a relay, which records
the requests and disturbs them. The languages are tested at the same time, because the tests wait most of the time. A language
whose compiler is missing is a fault. Ends with 1 if anything does not fit.
"""
import concurrent.futures
import http.client
import http.server
import json
import os
import pathlib
import queue
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parents[2]
CLIENTS, DRIVERS = ROOT / "Deploy/clients", ROOT / "Tests/DeployTests/clients"
PATIENCE = 60
LANGUAGES = ["python", "go", "java", "typescript", "swift"]


def expect(condition, text):
    if not condition:
        raise AssertionError(text)


def until(what, text, seconds=PATIENCE):
    """The first value of what() that counts as true."""
    end = time.monotonic() + seconds
    while not (value := what()):
        expect(time.monotonic() < end, f"not within {seconds} s: {text}")
        time.sleep(0.02)
    return value


def call(port, method, path, body=None, headers={}):
    """Status, header fields and body of an answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    connection.request(method, path, body, headers)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, answer.headers, text


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


class Servers:
    """The broker and the development provider, with a tenant and an API key."""

    def __init__(self, programs, directory):
        self.port, self.provider_port, self.processes = free_port(), free_port(), []
        base, provider = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{self.provider_port}"
        environment = {name: value for name, value in os.environ.items() if not name.startswith("TOKEN_BROKER_")}
        self.start(
            [programs / "token-broker-provider", "--profile", "tidal", "--listen", f"127.0.0.1:{self.provider_port}",
             "--client", "demo", "--redirect-uri", f"{base}/login/callback"], directory / "provider.log", environment)
        self.start([programs / "token-broker"], directory / "broker.log", environment | {
            "TOKEN_BROKER_LISTEN": f"127.0.0.1:{self.port}", "TOKEN_BROKER_DATA_DIR": str(directory / "data"),
            "TOKEN_BROKER_ALLOW_INSECURE_PROVIDERS": "true"})
        for port, path in [(self.port, "/readyz"), (self.provider_port, "/link")]:
            until(lambda: self.is_ready(port, path), f"{path} is answered")
        admin = {"Authorization": "Bearer " + (directory / "data/admin.key").read_text().strip()}
        self.change(admin, "PUT", "/tenants/demo", {
            "client_id": "demo", "scopes": ["r_usr"], "login_service_base_uri": provider,
            "auth_service_base_uri": f"{provider}/v1", "certificate_pinning": False})
        self.key = self.change(admin, "POST", "/tenants/demo/api-keys", {
            "name": "clients", "permissions": ["login", "credentials:read", "credentials:write", "events"]})["api_key"]
        self.headers = {"Authorization": f"Bearer {self.key}"}

    def start(self, command, log, environment):
        with open(log, "w") as output:
            self.processes.append(subprocess.Popen(command, stdout=output, stderr=output, env=environment))

    @staticmethod
    def is_ready(port, path):
        try:
            return call(port, "GET", path)[0] == 200
        except OSError:
            return False

    def change(self, headers, method, path, body):
        status, _, text = call(self.port, method, path, json.dumps(body), headers | {"Content-Type": "application/json"})
        expect(status in (200, 201), f"{method} {path}: {status} {text}")
        return json.loads(text)

    def log_in(self, storage_key):
        """As a browser does it whose user agrees."""
        begun = self.change(self.headers, "POST", "/login/initialize", {"storage_key": storage_key})
        form = begun["login_uri"].split("?", 1)[1] + "&user=ada&decision=approve"
        status, fields, text = call(
            self.provider_port, "POST", "/authorize", form, {"Content-Type": "application/x-www-form-urlencoded"})
        expect(status in (302, 303), f"the provider's page: {status} {text}")
        target = urllib.parse.urlsplit(fields["Location"])
        status, _, text = call(self.port, "GET", f"{target.path}?{target.query}", headers={"Accept": "application/json"})
        expect(status == 200, f"the callback: {status} {text}")

    def log_out(self, storage_key):
        status, _, text = call(self.port, "DELETE", f"/credentials?storage_key={storage_key}", headers=self.headers)
        expect(status == 204, f"the logout: {status} {text}")

    def stored(self, storage_key):
        status, _, text = call(self.port, "GET", f"/credentials?policy=local&storage_key={storage_key}", headers=self.headers)
        expect(status == 200, f"the stored credentials: {status} {text}")
        return json.loads(text)

    def refreshes(self):
        """How many refreshes the provider has been asked for."""
        counters = json.loads(call(self.provider_port, "GET", "/_control/requests")[2])["counters"]
        return counters["grants"]["refresh_token"]

    def stop(self):
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            process.wait(PATIENCE)


class Relay(http.server.ThreadingHTTPServer):
    """Passes requests on to the broker. `log` has each with the status of its answer. `faults` are for the next reads of
    credentials: a status with header fields, "drop" (the connection closes), "hang" (until the relay ends) or "brief"
    (the answer says that the token lives for three seconds)."""
    daemon_threads = True

    def __init__(self, port):
        super().__init__(("127.0.0.1", 0), Handler)
        self.broker_port, self.log, self.faults, self.streams, self.ended = port, [], [], [], threading.Event()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, *_):
        pass  # A peer that closes its connection is what some clients are tested with.

    def take(self):
        """The requests since the last call, as pairs of header fields and status."""
        taken, self.log = self.log, []
        return taken

    def cut(self):
        """Ends all event streams."""
        streams, self.streams = self.streams, []
        for stream in streams:
            stream.shutdown(socket.SHUT_RDWR)

    def stop(self):
        self.ended.set()
        self.shutdown()
        self.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        relay, is_read = self.server, self.path.startswith("/credentials")
        fault = relay.faults.pop(0) if is_read and relay.faults else None
        if fault in ("drop", "hang"):
            relay.log.append((self.path, self.headers, 0))
            if fault == "hang":
                relay.ended.wait(PATIENCE)
            self.close_connection = True
        elif isinstance(fault, tuple):
            self.reply(fault[0], fault[1], b"")
        else:
            self.pass_on("brief" if fault == "brief" else None)

    def pass_on(self, change):
        relay = self.server
        connection = http.client.HTTPConnection("127.0.0.1", relay.broker_port, timeout=PATIENCE)
        names = ["Authorization", "X-Tenant", "If-None-Match", "Prefer", "Last-Event-ID", "Accept"]
        connection.request("GET", self.path, headers={name: self.headers[name] for name in names if name in self.headers})
        answer = connection.getresponse()
        if answer.headers.get("Content-Type") == "text/event-stream":
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            relay.streams += [self.connection, connection.sock or answer.fp.raw._sock]
            relay.log.append((self.path, self.headers, 200))
            while octets := answer.read1(65536):
                self.wfile.write(octets)
            self.close_connection = True
            return
        body = answer.read()
        if change == "brief" and answer.status == 200:
            body = json.dumps(json.loads(body) | {"expires_in": 3}).encode()
        kept = {name: value for name, value in answer.headers.items() if name.lower() not in ("content-length", "date")}
        self.reply(answer.status, kept, body)

    def reply(self, status, fields, body):
        self.server.log.append((self.path, self.headers, status))
        self.send_response(status)
        for name, value in fields.items():
            self.send_header(name, value)
        if status != 304:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if status != 304:
            self.wfile.write(body)


class Driver:
    """A program that has the client of a language."""

    def __init__(self, command, base, key):
        self.process = subprocess.Popen(
            [*command, base, key], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.answers, self.events = queue.Queue(), queue.Queue()
        threading.Thread(target=self.read, daemon=True).start()

    def read(self):
        for line in self.process.stdout:
            (self.events if line.startswith("event ") else self.answers).put(line.split())
        self.answers.put(["the", "driver", "has", "ended"])

    def ask(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        return self.answers.get(timeout=PATIENCE)

    def token(self, storage_key="alice", min_ttl=60):
        answer = self.ask("token", storage_key, min_ttl)
        expect(answer[0] == "token", f"instead of a token: {answer}")
        return answer[1:]

    def error(self, storage_key="alice"):
        """Status, code, Retry-After and whether the user must log in."""
        answer = self.ask("token", storage_key, 60)
        expect(answer[0] == "error", f"instead of an error: {answer}")
        return answer[1:]

    def event(self, name, storage_key):
        """The id of the next event of that name and storage key."""
        end = time.monotonic() + PATIENCE
        while True:
            event = self.events.get(timeout=max(0.01, end - time.monotonic()))
            if event[2:] == [name, storage_key]:
                return event[1]

    def stop(self):
        self.process.stdin.close()
        expect(self.process.wait(PATIENCE) == 0, f"the driver ended with {self.process.returncode}")


def statuses(requests):
    return [status for _, _, status in requests]


def check_reads(driver, servers, relay):
    driver.ask("client", 0, 30)
    expect(driver.error() == ["424", "level_not_available", "-", "yes"], "a user who has never logged in must")
    servers.log_in("alice")
    relay.take()
    etag, token = driver.token()
    expect(token == servers.stored("alice")["token"], "the token is the broker's")
    _, fields, status = relay.take()[-1]
    wait = fields["Prefer"] or ""
    expect(status == 200 and "If-None-Match" not in fields, "the first read asks for credentials")
    expect(wait.startswith("wait=") and 25 <= int(wait[5:]) <= 30, f"the read names how long it waits: {wait}")
    expect(driver.token() == [etag, token], "the second read has the same token")
    (_, fields, status), = relay.take()
    expect(status == 304 and fields["If-None-Match"] == etag, "the second read compares and is answered 304")
    driver.ask("client", 30, 30)
    expect(driver.token() == driver.token() == [etag, token], "all reads have the same token")
    expect(statuses(relay.take()) == [200], "within max_age one request is enough")
    expect(driver.token("alice", 20_000)[1] != token, "a token that is valid for too short a time is renewed")
    relay.take()


def check_faults(driver, servers, relay):
    driver.ask("client", 0, 30)
    relay.faults = [(429, {"Retry-After": "1"}), (503, {"Retry-After": "1"}), "drop", (502, {})]
    began = time.monotonic()
    etag, token = driver.token()
    expect(time.monotonic() - began >= 2, "Retry-After is waited for")
    expect(statuses(relay.take()) == [429, 503, 0, 502, 200], "passing faults are tried again")
    relay.faults = [(503, {"Retry-After": "100"})]
    expect(driver.token() == [etag, token], "a token in memory is given while the broker does not answer")
    expect(statuses(relay.take()) == [503], "and at once")
    driver.ask("client", 0, 30)
    relay.faults = [(503, {"Retry-After": "100"})]
    expect(driver.error()[::2] == ["503", "100"], "a wait that is too long is the caller's")
    relay.faults = [(302, {"Location": f"http://127.0.0.1:{relay.server_port}/elsewhere"})]
    expect(driver.error()[0] == "302", "a redirect is an error")
    expect(not any(path == "/elsewhere" for path, _, _ in relay.take()), "the key follows no redirect")
    driver.ask("client", 0, 2)
    relay.faults, began = ["hang"], time.monotonic()
    expect(driver.error()[:2] == ["0", "network_error"], "no answer is an error")
    expect(1.5 < time.monotonic() - began < 8, "in time")
    driver.ask("client", 30, 2)
    relay.faults = ["brief"]
    expect(driver.token("alice", 1) == driver.token("alice", 1) == [etag, token], "a brief token is given while it lives")
    time.sleep(3.1)
    relay.faults = [(503, {"Retry-After": "100"})]
    expect(driver.error()[0] == "503", "an expired token is never given")
    relay.take()


def check_refusals(driver, servers, relay):
    driver.ask("client", 30, 30)
    etag, token = driver.token()
    driver.ask("keep")
    before = servers.refreshes()
    relay.take()
    answers = driver.ask("refuse", "alice", 8)[1:]
    expect(len(answers) == 8 and len(set(answers)) == 1 and answers[0] != etag, f"all get the same newer one: {answers}")
    expect(servers.refreshes() == before + 1, "refused by many, renewed once")
    for path, fields, _ in relay.take():
        expect("api_error_sub_status=11003" in path and fields["If-None-Match"] == etag, f"{path} names what was refused")
    expect(driver.ask("refuse", "alice", 1)[1:] == answers[:1], "a newer one in memory is given")
    expect(relay.take() == [], "without a request")
    driver.ask("client", 30, 30)
    expect(driver.ask("refuse", "alice", 2)[1:] == answers[:2], "another process gets the newer one")
    expect(servers.refreshes() == before + 1, "without a second renewal")
    expect(driver.token()[1] != token, "the refused token is not given again")
    relay.take()


def check_events(driver, servers, relay):
    driver.ask("client", 30, 30)
    driver.token()
    driver.ask("listen")
    until(lambda: relay.streams, "the stream is open")
    bob = {"storage_key": "bob", "credentials": {
        "client_id": "demo", "user_id": "7", "token": "t-1", "expires": "2030-01-01T00:00:00Z"}}
    servers.change(servers.headers, "PUT", "/credentials", bob)
    last = driver.event("credentials.updated", "bob")
    relay.take()
    relay.cut()
    bob["credentials"]["token"] = "t-2"
    servers.change(servers.headers, "PUT", "/credentials", bob)
    driver.event("credentials.updated", "bob")
    resumed = [fields["Last-Event-ID"] for path, fields, _ in relay.take() if path.startswith("/events")]
    expect(resumed[:1] == [last], f"the stream goes on after {last}: {resumed}")
    servers.log_out("alice")
    driver.event("credentials.deauthorized", "alice")
    expect(driver.error() == ["424", "level_not_available", "-", "yes"], "after a logout the token in memory is forgotten")


def build(language, directory):
    """The command that runs a language's driver."""
    def run(*command, **others):
        subprocess.run(command, check=True, **others)

    directory.mkdir()
    if language == "python":
        return ["/usr/bin/python3", "-B", DRIVERS / "driver.py"]
    if language == "go":
        for source, target in [(CLIENTS / "tokenbroker.go", "tokenbroker/tokenbroker.go"), (DRIVERS / "driver.go", "main.go")]:
            (directory / target).parent.mkdir(exist_ok=True)
            shutil.copy(source, directory / target)
        (directory / "go.mod").write_text("module driver\n\ngo 1.18\n")
        run("/usr/bin/go", "vet", "./...", cwd=directory)
        run("/usr/bin/go", "build", "-o", "driver", ".", cwd=directory)
        return [directory / "driver"]
    if language == "java":
        run("javac", "--release", "17", "-Xlint:all", "-Werror", "-d", directory, CLIENTS / "TokenBroker.java", DRIVERS / "Driver.java")
        return ["java", "-cp", directory, "Driver"]
    if language == "typescript":
        for source in [CLIENTS / "token-broker.ts", DRIVERS / "driver.ts"]:
            shutil.copy(source, directory)
        (directory / "package.json").write_text('{"type": "module"}')
        run("tsc", "--strict", "--target", "es2022", "--module", "es2022", "--moduleResolution", "node", "--lib",
            "es2022,dom,dom.iterable", directory / "driver.ts")
        return ["node", directory / "driver.js"]
    run("swiftc", "-swift-version", "6", "-parse-as-library", "-warnings-as-errors", "-o", directory / "driver",
        CLIENTS / "TokenBroker.swift", DRIVERS / "driver.swift")
    return [directory / "driver"]


def check(language, programs, directory):
    directory.mkdir()
    driver_command = build(language, directory / "build")
    servers = Servers(programs, directory)
    relay = Relay(servers.port)
    try:
        driver = Driver(driver_command, f"http://127.0.0.1:{relay.server_port}", servers.key)
        try:
            for part in [check_reads, check_faults, check_refusals, check_events]:
                part(driver, servers, relay)
            driver.stop()
        finally:
            driver.process.kill()
            driver.process.wait()
    finally:
        relay.stop()
        servers.stop()


def main():
    if len(sys.argv) < 2 or not set(sys.argv[2:]) <= set(LANGUAGES):
        sys.exit(__doc__)
    programs, languages = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2:] or LANGUAGES

    def is_well(language):
        began = time.monotonic()
        try:
            check(language, programs, pathlib.Path(folder) / language)
            print(f"{language}: well ({time.monotonic() - began:.0f} s)", flush=True)
            return True
        except (AssertionError, OSError, subprocess.SubprocessError, queue.Empty, http.client.HTTPException) as fault:
            print(f"{language}: {type(fault).__name__}: {fault}", file=sys.stderr, flush=True)
            return False

    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(3) as threads:
        results = list(threads.map(is_well, languages))
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
