#!/usr/bin/env bash
# google-auth 2.63.0 (PyPI), Python 3.11: `Credentials.expired` is true, and `valid` is false, from 225 seconds before the expiry on.
#
# One would guess that the two properties tell of the time that `expiry` names, as `expired` says. Who hands such credentials a
# token with less than 225 s left (from a cache or a broker, say) finds it refused before it was sent: with a refresh token it
# is renewed at each use, without one the request fails with RefreshError.
#
# Output seen:
#   226 s before the expiry: expired False, valid True
#   224 s before the expiry: expired True, valid False
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet --disable-pip-version-check google-auth==2.63.0
cat >"$directory/finding.py" <<'PYTHON'
import datetime, sys
from google.auth import _helpers
from google.oauth2.credentials import Credentials

found = []
for left in (226, 224):
    credentials = Credentials("token", expiry=_helpers.utcnow() + datetime.timedelta(seconds=left))
    found.append((credentials.expired, credentials.valid))
    print(f"{left} s before the expiry: expired {credentials.expired}, valid {credentials.valid}")
sys.exit(0 if found == [(False, True), (True, False)] else 1)
PYTHON
"$directory/venv/bin/python" "$directory/finding.py"
