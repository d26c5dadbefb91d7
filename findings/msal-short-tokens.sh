#!/usr/bin/env bash
# msal 1.39.0 (PyPI), Python 3.11: a token that lives for 300 seconds or less is never taken from MSAL's cache.
#
# The cache does not give a token with less than five minutes left, and does not make the margin smaller for a token that never
# had more. One would guess that a cached token is used for at least a part of its life. Here each call is a request to the
# token endpoint, at a server that grants tokens of five minutes; with ten seconds more, three calls are one request.
#
# Output seen:
#   tokens of 300 s: 3 calls make 3 requests
#   tokens of 310 s: 3 calls make 1 requests
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet --disable-pip-version-check msal==1.39.0
cat >"$directory/finding.py" <<'PYTHON'
import json, sys
import msal

ISSUER = "https://op.example/tenant"


class Answer:
    status_code, headers = 200, {}

    def __init__(self, body):
        self.text = json.dumps(body)

    def raise_for_status(self):
        pass


class Server:
    requests = 0

    def __init__(self, lifetime):
        self.lifetime = lifetime

    def get(self, url, **arguments):
        return Answer({"issuer": ISSUER, "authorization_endpoint": ISSUER + "/authorize", "token_endpoint": ISSUER + "/token"})

    def post(self, url, **arguments):
        self.requests += 1
        return Answer({"access_token": f"token {self.requests}", "token_type": "Bearer", "expires_in": self.lifetime})

    def close(self):
        pass


def requests(lifetime):
    server = Server(lifetime)
    client = msal.ConfidentialClientApplication(
        "client", client_credential="secret", oidc_authority=ISSUER, http_client=server)
    for _ in range(3):
        client.acquire_token_for_client(["scope"])
    print(f"tokens of {lifetime} s: 3 calls make {server.requests} requests")
    return server.requests


sys.exit(0 if (requests(300), requests(310)) == (3, 1) else 1)
PYTHON
"$directory/venv/bin/python" "$directory/finding.py"
