#!/usr/bin/env bash
# mcp 2.3.0 (PyPI), Python 3.11: the revocation endpoint of the MCP SDK's authorization server refuses every request without a
# field `client_secret` in the form, also of a client that is registered for HTTP Basic and has shown its secret there.
#
# The endpoint announces `client_secret_basic` (revocation_endpoint_auth_methods_supported), and one would guess that what is good
# at the token endpoint is good here. A client that sends its secret by HTTP Basic only, as RFC 6749, section 2.3, has it
# (one method in a request), cannot revoke. An empty field is enough.
#
# Output seen:
#   Basic and client_id:                         400 invalid_request
#   Basic, client_id and an empty client_secret: 200
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet --disable-pip-version-check mcp==2.3.0 httpx==0.28.1
cat >"$directory/finding.py" <<'PYTHON'
import asyncio, sys
import httpx
from mcp.server.auth.routes import create_auth_routes
from mcp.server.auth.settings import RevocationOptions
from mcp.shared.auth import OAuthClientInformationFull
from pydantic import AnyHttpUrl
from starlette.applications import Starlette

CLIENT = OAuthClientInformationFull(
    client_id="client", client_secret="secret", redirect_uris=["http://127.0.0.1/callback"],
    token_endpoint_auth_method="client_secret_basic", grant_types=["authorization_code"], response_types=["code"])


class Provider:
    async def get_client(self, client_id):
        return CLIENT

    async def load_access_token(self, token):
        return None

    async def load_refresh_token(self, client, token):
        return None


async def main():
    app = Starlette(
        routes=create_auth_routes(
            Provider(), AnyHttpUrl("http://127.0.0.1"), revocation_options=RevocationOptions(enabled=True)))
    form = {"token": "t", "token_type_hint": "refresh_token", "client_id": "client"}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        without = await client.post("/revoke", data=form, auth=("client", "secret"))
        beside = await client.post("/revoke", data={**form, "client_secret": ""}, auth=("client", "secret"))
    print("Basic and client_id:                        ", without.status_code, without.json()["error"])
    print("Basic, client_id and an empty client_secret:", beside.status_code)
    sys.exit(0 if (without.status_code, beside.status_code) == (400, 200) else 1)

asyncio.run(main())
PYTHON
"$directory/venv/bin/python" "$directory/finding.py"
