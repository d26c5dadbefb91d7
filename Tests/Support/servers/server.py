#!/usr/bin/env python3
"""Runs one authorization server of another project for one test, and stands in for its user's browser.

    server.py <name: django, authlib, mcp, doorkeeper or lemonldap> <options as one JSON object>

The options are `redirect_uri`, the only one of the client, `tools`, the directory of what Deploy/test has installed,
`access_token_lifetime` in seconds (3600 if omitted), and what the server's own module reads. The server runs on a free loopback port, behind a proxy that notes how each request to
its token endpoint shows the client. One line of JSON tells of it; then each line of JSON on standard input is answered by
one line:

    {"command": "log_in", "url": "..."}   {"redirect": "https://...?code=..."}
    {"command": "end_sessions"}           {"ended": true}      the server withdraws what it has granted
    {"command": "forget_clients"}         {"forgotten": true}  it loses all it has (mcp only)
    {"command": "use_tool", "token": ""}  {"text": "..."}      what its resource answers to a token (mcp only)
    {"command": "takes", "token": ""}     {"takes": true}      whether its API takes an access token
    {"command": "count_sessions"}         {"sessions": 1}      how many refresh tokens the server would take
    {"command": "requests"}               {"requests": [{"grant": "authorization_code", "method": "basic", "status": 200}]}
    anything that fails                   {"error": "..."}

The end of standard input ends the server. What it has started dies with this process by PR_SET_PDEATHSIG.
"""

import base64
import http.client
import http.server
import importlib
import json
import pathlib
import shutil
import socket
import sys
import tempfile
import threading
import urllib.error
import urllib.parse
import urllib.request

from browser import Browser, Failure


class Recorder:
    """A proxy on the server's public port, which notes the requests to the token endpoint and the revocation endpoint."""

    def __init__(self):
        self.requests = []
        self.upstream = None
        self.paths = {}
        recorder = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_one(self):
                length = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(length) if length else b""
                upstream = http.client.HTTPConnection("127.0.0.1", recorder.upstream, timeout=30)
                headers = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
                upstream.request(self.command, self.path, body=body or None, headers=headers)
                answer = upstream.getresponse()
                content = answer.read()
                recorder.note(self, body, answer.status)
                self.send_response_only(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("transfer-encoding", "content-length", "connection", "keep-alive"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)
                upstream.close()

            do_GET = do_POST = do_HEAD = do_OPTIONS = do_DELETE = handle_one

            def log_message(self, *arguments):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def note(self, request, body, status):
        kind = self.paths.get(urllib.parse.urlsplit(request.path).path)
        if kind is None:
            return
        form = dict(urllib.parse.parse_qsl(body.decode("utf-8", "replace")))
        if request.headers.get("Authorization", "").startswith("Basic "):
            method = "basic"
        else:
            method = "post" if "client_secret" in form else "none"
        self.requests.append({"grant": form.get("grant_type", kind), "method": method, "status": status})


def takes(base_url, path, token):
    """Whether a page of the server's API takes an access token, in whatever way it answers then."""
    request = urllib.request.Request(base_url + path, headers={"Authorization": f"Bearer {token}"})
    try:
        urllib.request.urlopen(request, timeout=20).close()
    except urllib.error.HTTPError as error:
        return error.code not in (401, 403)
    return True


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    name, options = sys.argv[1], json.loads(sys.argv[2])
    directory = pathlib.Path(tempfile.mkdtemp(prefix="token-broker-server-"))
    output = sys.stdout
    sys.stdout = sys.stderr
    server = None

    def say(answer):
        print(json.dumps(answer), file=output, flush=True)

    try:
        recorder = Recorder()
        recorder.upstream = free_port()
        base_url = f"http://127.0.0.1:{recorder.port}"
        try:
            server = importlib.import_module(f"run_{name}").Server(base_url, recorder.upstream, directory, options)
            recorder.paths = {
                urllib.parse.urlsplit(server.token_endpoint).path: "token",
                urllib.parse.urlsplit(server.revocation_endpoint).path: "revocation",
            }
            say(
                {
                    "issuer": server.issuer,
                    "client_id": server.client_id,
                    "client_secret": server.client_secret,
                    "token_endpoint": server.token_endpoint,
                    "authorization_endpoint": server.authorization_endpoint,
                    "revocation_endpoint": server.revocation_endpoint,
                    "resource": getattr(server, "resource", None),
                }
            )
        except Exception as error:
            say({"error": f"{name} did not start: {type(error).__name__}: {error}"})
            return
        for line in sys.stdin:
            try:
                request = json.loads(line)
                if request["command"] == "log_in":
                    browser = Browser(base_url)
                    say({"redirect": browser.log_in(request["url"], server.answers, options["redirect_uri"])})
                elif request["command"] == "end_sessions":
                    server.end_sessions()
                    say({"ended": True})
                elif request["command"] == "forget_clients":
                    server.forget_clients()
                    say({"forgotten": True})
                elif request["command"] == "use_tool":
                    say({"text": server.use_tool(request["token"])})
                elif request["command"] == "takes":
                    say({"takes": takes(base_url, server.protected, request["token"])})
                elif request["command"] == "count_sessions":
                    say({"sessions": server.count_sessions()})
                elif request["command"] == "requests":
                    say({"requests": recorder.requests})
                else:
                    raise Failure("no such command")
            except Exception as error:
                say({"error": f"{type(error).__name__}: {error}"})
    finally:
        if server is not None and hasattr(server, "stop"):
            server.stop()
        shutil.rmtree(directory, ignore_errors=True)


main()
