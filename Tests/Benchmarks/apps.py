"""The token endpoint of apps: refreshes with rotation off and on, at the broker and at Glewlwyd's token endpoint."""

import base64
import concurrent.futures
import contextlib
import hashlib
import http.client
import http.server
import itertools
import json
import os
import re
import statistics
import subprocess
import threading
import urllib.parse

from servers import GENERATOR_CORE, SERVER_CORE, TENANT, TOKEN, Failure, spawn, stop

# Apps' sessions, each of another user: with so many, each refreshes as seldom as the load allows.
SESSIONS = 1000
GLEWLWYD_SESSIONS = 64
CONNECTIONS = 64
# Reads of credentials at the broker with PostgreSQL, which show how fast the machine is.
WARM = ("broker, PostgreSQL", None)
VERIFIER = "a-verifier-that-is-long-enough-for-every-server-0123456789"
CHALLENGE = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).rstrip(b"=").decode()
REDIRECT_URI = "http://127.0.0.1:7/callback"
HERE = os.path.dirname(os.path.abspath(__file__))


# --- Logins ---------------------------------------------------------------------------------------------------------


class Provider(http.server.BaseHTTPRequestHandler):
    """A provider's token endpoint, which grants each code to another user."""

    protocol_version = "HTTP/1.1"
    users = itertools.count(1)

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        user = next(self.users)
        content = json.dumps({
            "access_token": TOKEN, "refresh_token": f"provider-token-{user}", "token_type": "Bearer",
            "expires_in": 86400 * 30, "scope": "r_usr", "user_id": user}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def provider():
    """The address of a provider that runs meanwhile."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def query(address):
    return dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(address).query))


def path(address):
    parts = urllib.parse.urlsplit(address)
    return f"{parts.path}?{parts.query}" if parts.query else parts.path


class Browser:
    """Goes through a login at a broker, without the provider's page."""

    def __init__(self, broker):
        self.broker, self.cookies = broker, {}

    def ask(self, method, address, form=None):
        fields = {"Accept": "text/html", "Sec-Fetch-Site": "same-origin"}
        if self.cookies:
            fields["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if form is not None:
            fields["Content-Type"] = "application/x-www-form-urlencoded"
        connection = http.client.HTTPConnection("127.0.0.1", self.broker.port, timeout=60)
        try:
            connection.request(method, path(address), None if form is None else urllib.parse.urlencode(form), fields)
            answer = connection.getresponse()
            for cookie in answer.headers.get_all("Set-Cookie", []):
                name, _, value = cookie.split(";", 1)[0].partition("=")
                self.cookies[name] = value
            return answer, answer.read().decode()
        finally:
            connection.close()

    def redirect(self, address):
        answer, content = self.ask("GET", address)
        location = answer.headers.get("Location")
        if location is None:
            raise Failure(f"no redirect but {answer.status}: {content[:300]}")
        return location

    def log_in(self, client):
        """The first refresh token of a new session of the client."""
        authorize = urllib.parse.urlencode({
            "response_type": "code", "client_id": client, "redirect_uri": REDIRECT_URI, "code_challenge": CHALLENGE,
            "code_challenge_method": "S256"})
        at_provider = self.redirect(f"/oauth2/authorize?{authorize}")
        asked = self.redirect(f"/login/callback?code=c&state={query(at_provider)['state']}")
        _, page = self.ask("POST", asked, {"decision": "continue"})
        code = query(re.search(r'href="([^"]*)"', page)[1].replace("&amp;", "&"))["code"]
        answer, content = self.ask("POST", "/oauth2/token", {
            "grant_type": "authorization_code", "client_id": client, "code": code, "redirect_uri": REDIRECT_URI,
            "code_verifier": VERIFIER})
        if answer.status != 200:
            raise Failure(f"no session: {answer.status} {content}")
        return json.loads(content)["refresh_token"]


def begin_sessions(broker):
    """Files with the refresh tokens of sessions with and without rotation."""
    files = {}
    with provider() as address:
        broker.administer("PUT", f"/tenants/{TENANT}", {
            "client_id": "benchmark", "scopes": ["r_usr"], "login_service_base_uri": address,
            "auth_service_base_uri": address})
        for rotates in (False, True):
            client = "rotating" if rotates else "steady"
            broker.administer("PUT", f"/tenants/{TENANT}/clients/{client}", {
                "redirect_uris": [REDIRECT_URI.replace(":7", "")], "refresh_token_rotation": rotates})
            with concurrent.futures.ThreadPoolExecutor(8) as threads:
                tokens = list(threads.map(lambda _: Browser(broker).log_in(client), range(SESSIONS)))
            files[rotates] = broker.write(f"{client}.tokens", "\n".join(tokens) + "\n")
    return files


# --- Glewlwyd -------------------------------------------------------------------------------------------------------


class Glewlwyd:
    """Debian's authorization server, with sessions of its one user."""

    def __init__(self, session, rotates):
        support = os.path.join(HERE, "..", "Support", "glewlwyd")
        installation = os.path.join(HERE, "..", "..", ".build-tools", "glewlwyd")
        self.process = spawn(
            ["/usr/bin/python3", os.path.join(support, "glewlwyd.py"), os.path.realpath(installation), json.dumps(
                {"redirect_uris": [REDIRECT_URI], "rotates_refresh_tokens": rotates})],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            self.described = self._answer()
            self.port = urllib.parse.urlsplit(self.described["base_url"]).port
            self.process_id = self.described["process_id"]
            for thread in os.listdir(f"/proc/{self.process_id}/task"):
                os.sched_setaffinity(int(thread), (SERVER_CORE,))
            self.form = urllib.parse.urlencode({
                "grant_type": "refresh_token", "client_id": self.described["client_id"],
                "client_secret": self.described["client_secret"]})
            self.tokens = session.path(f"glewlwyd-{rotates}.tokens")
            with open(self.tokens, "w", encoding="ascii") as file:
                file.writelines(self._log_in() + "\n" for _ in range(GLEWLWYD_SESSIONS))
        except BaseException:
            self.stop()
            raise

    def _answer(self):
        answer = json.loads(self.process.stdout.readline() or '{"error": "it has ended"}')
        if "error" in answer:
            raise Failure(f"Glewlwyd: {answer['error']}")
        return answer

    def _command(self, **command):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _log_in(self):
        authorize = urllib.parse.urlencode({
            "response_type": "code", "client_id": self.described["client_id"], "redirect_uri": REDIRECT_URI,
            "scope": "music", "code_challenge": CHALLENGE, "code_challenge_method": "S256"})
        redirect = self._command(command="log_in", url=f"{self.described['authorization_endpoint']}?{authorize}")
        answer = self._command(command="post", url=self.described["token_endpoint"], form={
            "grant_type": "authorization_code", "client_id": self.described["client_id"],
            "client_secret": self.described["client_secret"], "code": query(redirect["redirect"])["code"],
            "redirect_uri": REDIRECT_URI, "code_verifier": VERIFIER})
        if answer["status"] != 200:
            raise Failure(f"Glewlwyd: no tokens: {answer}")
        return json.loads(answer["body"])["refresh_token"]

    def stop(self):
        self.process.stdin.close()
        stop(self.process)


# --- The measurement ------------------------------------------------------------------------------------------------


def run(session, server, path, form, tokens):
    """One window of refreshes."""
    process = spawn([
        session.tools.refresh, "--port", server.port, "--path", path, "--form", form, "--tokens", tokens,
        "--connections", CONNECTIONS, "--seconds", session.arguments.seconds, "--cpu-of", server.process_id],
        (GENERATOR_CORE,), stdout=subprocess.PIPE, text=True)
    output, _ = process.communicate(timeout=600)
    if process.returncode != 0:
        raise Failure(f"refreshes failed: {' '.join(process.args)}")
    window = json.loads(output)
    if window["other"] or window["unavailable"] or window["errors"]:
        raise Failure(f"refreshes were not answered as they should be: {output}")
    return window


def measure_apps(session, findings):
    """Refreshes on one core: CPU without rotation, and how many a second with rotation, each beside Glewlwyd's."""
    settings = {"TOKEN_BROKER_APP_REQUESTS_PER_ADDRESS": "10000000", "TOKEN_BROKER_APP_REQUESTS_PER_USER": "10000000"}
    brokers = [
        session.broker("broker for apps, files", keys=1, **settings),
        session.broker("broker for apps, PostgreSQL", session.database("apps"), keys=1, **settings)]
    results = {}
    with contextlib.ExitStack() as stack:
        servers = []
        for broker in brokers:
            stack.enter_context(session.running(broker))
            files = begin_sessions(broker)
            for rotates, tokens in files.items():
                client = "rotating" if rotates else "steady"
                name = broker.name.replace("broker for apps", "broker")
                servers.append((
                    (name, rotates), broker, "/oauth2/token", f"grant_type=refresh_token&client_id={client}", tokens))
        for rotates in (False, True):
            glewlwyd = Glewlwyd(session, rotates)
            stack.callback(glewlwyd.stop)
            path = urllib.parse.urlsplit(glewlwyd.described["token_endpoint"]).path
            servers.append((("Glewlwyd 2.7, SQLite", rotates), glewlwyd, path, glewlwyd.form, glewlwyd.tokens))
        warm = brokers[1].request("warm")
        for number in range(max(3, session.arguments.rounds // 3)):
            for key, *load in servers:
                results.setdefault(key, []).append(run(session, *load))
            results.setdefault(WARM, []).append(session.tools.run_load(
                brokers[1], warm, "--connections", CONNECTIONS, "--seconds", session.arguments.seconds))
            session.say(f"round {number + 1}")

    def middle(key, figure):
        return statistics.median(window[figure] for window in results[key])

    findings.data("apps", [[*key, windows] for key, windows in results.items()])
    steady = ("broker, PostgreSQL", False)
    findings.figure(
        "app_refresh_cpu_over_warm_request", middle(steady, "server_cpu_us") / middle(WARM, "server_cpu_us"))
    findings.figure("app_rotations_per_second", middle(("broker, PostgreSQL", True), "per_second"))
    findings.figure(
        "app_refresh_cpu_glewlwyd_over_broker",
        middle(("Glewlwyd 2.7, SQLite", False), "server_cpu_us") / middle(steady, "server_cpu_us"))
    figures = ("per_second", "server_cpu_us", "server_busy", "generator_busy", "p50_us", "p99_us")
    findings.table(
        f"Refreshes at the token endpoint, {CONNECTIONS} connections",
        ["server", "rotation", "per second", "CPU µs", "busy", "generator", "p50 µs", "p99 µs"],
        [[name, {True: "on", False: "off", None: "none: a warm GET /credentials"}[rotates],
          *(middle((name, rotates), figure) for figure in figures)]
         for name, rotates in results])
