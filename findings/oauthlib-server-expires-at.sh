#!/usr/bin/env bash
# oauthlib 4.0.1 and Authlib 1.6.5 (PyPI), Python 3.11: a member `expires_at` in a token answer decides when the client takes
# the token for expired, and `expires_in` beside it is not looked at.
#
# RFC 6749 knows only `expires_in`, and has a client ignore members that it does not know. `expires_at` is the name under which
# both libraries keep the expiry that they compute. Where a server sends a member of that name, with another meaning than
# seconds since 1970 (here milliseconds), a token of one minute counts as good for years.
#
# Output seen, of an answer with "expires_in": 60:
#   oauthlib, no expires_at:              expires in 60 s
#   oauthlib, expires_at in milliseconds: expires in more than a year
#   Authlib, no expires_at:               expires in 60 s
#   Authlib, expires_at in milliseconds:  expires in more than a year
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet --disable-pip-version-check oauthlib==4.0.1 Authlib==1.6.5
cat >"$directory/finding.py" <<'PYTHON'
import json, sys, time
from authlib.oauth2.rfc6749 import OAuth2Token
from oauthlib.oauth2 import WebApplicationClient

NOW = time.time()
plain = {"access_token": "a", "token_type": "Bearer", "expires_in": 60}
milliseconds = {**plain, "expires_at": int((NOW + 60) * 1000)}


def by_oauthlib(answer):
    return WebApplicationClient("client").parse_request_body_response(json.dumps(answer))["expires_at"]


def by_authlib(answer):
    return OAuth2Token.from_dict(dict(answer))["expires_at"]


found = []
for name, read in (("oauthlib", by_oauthlib), ("Authlib", by_authlib)):
    for what, answer in (("no expires_at", plain), ("expires_at in milliseconds", milliseconds)):
        left = read(answer) - NOW
        found.append("60 s" if 55 < left < 65 else "more than a year" if left > 366 * 86400 else f"{left} s")
        print(f"{name + ', ' + what + ':':37} expires in {found[-1]}")
sys.exit(0 if found == ["60 s", "more than a year"] * 2 else 1)
PYTHON
"$directory/venv/bin/python" "$directory/finding.py"
