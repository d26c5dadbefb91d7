#!/usr/bin/env bash
# mcp 2.3.0 (PyPI), Python 3.11: a client that registers at the MCP SDK's authorization server without naming
# `token_endpoint_auth_method` is registered for `client_secret_post`, and its secret in HTTP Basic is refused.
#
# RFC 7591, section 2, has `client_secret_basic` where the field is left out, and the server announces that method too. A client
# that relies on the default, and does not read the method from the answer to its registration, cannot get a token.
#
# Output seen:
#   registered for:  client_secret_post
#   secret by Basic: 401 {"error":"invalid_client","error_description":"Client secret is required"}
#   secret in form:  200 {"access_token":"a","token_type":"Bearer"}
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet --disable-pip-version-check mcp==2.3.0 httpx==0.28.1
cat >"$directory/finding.py" <<'PYTHON'
import asyncio, sys
import httpx
from mcp.server.auth.provider import RefreshToken
from mcp.server.auth.routes import create_auth_routes
from mcp.server.auth.settings import ClientRegistrationOptions
from mcp.shared.auth import OAuthToken
from pydantic import AnyHttpUrl
from starlette.applications import Starlette


class Provider:
    clients = {}

    async def register_client(self, client):
        self.clients[client.client_id] = client

    async def get_client(self, client_id):
        return self.clients.get(client_id)

    async def load_refresh_token(self, client, token):
        return RefreshToken(token=token, client_id=client.client_id, scopes=[])

    async def exchange_refresh_token(self, client, token, scopes):
        return OAuthToken(access_token="a")


async def main():
    options = ClientRegistrationOptions(enabled=True)
    app = Starlette(routes=create_auth_routes(
        Provider(), AnyHttpUrl("http://127.0.0.1"), client_registration_options=options))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        metadata = (await client.get("/.well-known/oauth-authorization-server")).json()
        registered = (await client.post("/register", json={"redirect_uris": ["http://127.0.0.1/callback"]})).json()
        name, secret = registered["client_id"], registered["client_secret"]
        form = {"grant_type": "refresh_token", "refresh_token": "r", "client_id": name}
        basic = await client.post("/token", data=form, auth=(name, secret))
        body = await client.post("/token", data={**form, "client_secret": secret})
    print("registered for: ", registered["token_endpoint_auth_method"])
    print("secret by Basic:", basic.status_code, basic.text)
    print("secret in form: ", body.status_code, body.text)
    announced = "client_secret_basic" in metadata["token_endpoint_auth_methods_supported"]
    sys.exit(0 if announced and (basic.status_code, body.status_code) == (401, 200) else 1)

asyncio.run(main())
PYTHON
"$directory/venv/bin/python" "$directory/finding.py"
