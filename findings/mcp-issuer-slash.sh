#!/usr/bin/env bash
# mcp 2.3.0 (PyPI), Python 3.11: the metadata of the MCP SDK's authorization server name another issuer than the one that it was
# given, where that has no path: with a slash at its end.
#
# RFC 8414, section 3.3, and RFC 9207 compare issuers character by character. A server that is set up with
# `https://auth.example` announces `https://auth.example/`, so that a client which is configured with the first refuses the
# metadata. With a path, the issuer is announced as it was given.
#
# Output seen:
#   https://auth.example          is announced as https://auth.example/
#   https://auth.example/tenant   is announced as https://auth.example/tenant
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet --disable-pip-version-check mcp==2.3.0
cat >"$directory/finding.py" <<'PYTHON'
import json, sys
from mcp.server.auth.routes import build_metadata
from mcp.server.auth.settings import ClientRegistrationOptions, RevocationOptions
from pydantic import AnyHttpUrl

def announced(issuer):
    metadata = build_metadata(AnyHttpUrl(issuer), None, ClientRegistrationOptions(), RevocationOptions())
    found = json.loads(metadata.model_dump_json())["issuer"]
    print(f"{issuer:29} is announced as {found}")
    return found

changed = announced("https://auth.example") == "https://auth.example/"
kept = announced("https://auth.example/tenant") == "https://auth.example/tenant"
sys.exit(0 if changed and kept else 1)
PYTHON
"$directory/venv/bin/python" "$directory/finding.py"
