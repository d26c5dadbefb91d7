#!/usr/bin/env bash
# mcp 2.3.0 (PyPI), Python 3.11: the token endpoint of the MCP SDK's authorization server wants `client_id` in the form, also
# from a client that authenticates by HTTP Basic.
#
# RFC 6749 has `client_id` in the form of a code exchange only where the client does not authenticate (section 4.1.3), and
# many clients leave it out beside HTTP Basic. Here such a request is refused as the wrong client, whatever the header says;
# with `client_id` in the form, the same header is accepted.
#
# Output seen:
#   without client_id in the form: 401 {"error":"invalid_client","error_description":"Missing client_id"}
#   with client_id in the form:    200 access_token, token_type, expires_in, refresh_token
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet --disable-pip-version-check mcp==2.3.0 httpx==0.28.1
cat >"$directory/finding.py" <<'PYTHON'
import asyncio, base64, hashlib, sys, time
import httpx
from mcp.server.auth.provider import AuthorizationCode
from mcp.server.auth.routes import create_auth_routes
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl
from starlette.applications import Starlette

VERIFIER = "v" * 43
CLIENT = OAuthClientInformationFull(
    client_id="client", client_secret="secret", redirect_uris=["http://127.0.0.1/callback"],
    token_endpoint_auth_method="client_secret_basic", grant_types=["authorization_code"], response_types=["code"])


class Provider:
    async def get_client(self, client_id):
        return CLIENT if client_id == "client" else None

    async def load_authorization_code(self, client, code):
        challenge = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).decode().rstrip("=")
        return AuthorizationCode(
            code=code, scopes=[], expires_at=time.time() + 60, client_id="client", code_challenge=challenge,
            redirect_uri="http://127.0.0.1/callback", redirect_uri_provided_explicitly=True)

    async def exchange_authorization_code(self, client, code):
        return OAuthToken(access_token="a", refresh_token="r", expires_in=3600)


async def main():
    app = Starlette(routes=create_auth_routes(Provider(), AnyHttpUrl("http://127.0.0.1")))
    form = {"grant_type": "authorization_code", "code": "c", "redirect_uri": "http://127.0.0.1/callback",
            "code_verifier": VERIFIER}
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1") as client:
        without = await client.post("/token", data=form, auth=("client", "secret"))
        beside = await client.post("/token", data={**form, "client_id": "client"}, auth=("client", "secret"))
    print("without client_id in the form:", without.status_code, without.text)
    print("with client_id in the form:   ", beside.status_code, ", ".join(beside.json()))
    sys.exit(0 if (without.status_code, beside.status_code) == (401, 200) else 1)

asyncio.run(main())
PYTHON
"$directory/venv/bin/python" "$directory/finding.py"
