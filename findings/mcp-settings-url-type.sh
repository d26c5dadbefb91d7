#!/usr/bin/env bash
# mcp 2.3.0 (PyPI), Python 3.11: an MCP server of the SDK names another authorization server, depending on whether its settings
# were given the issuer as a text or as the type that the field is declared with.
#
# `AuthSettings.issuer_url` is an `AnyHttpUrl`. A text without a path is kept as it is; an `AnyHttpUrl` of the same text, which one
# would guess is the same, has got a slash at its end. RFC 8414, section 3.3, compares issuers character by character, so that a
# client which goes by the resource's metadata (RFC 9728) finds the authorization server by one of the two only.
#
# Output seen:
#   given as a text:        ["https://auth.example"]
#   given as an AnyHttpUrl: ["https://auth.example/"]
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet --disable-pip-version-check mcp==2.3.0
cat >"$directory/finding.py" <<'PYTHON'
import asyncio, json, sys
import httpx2
from mcp.server.auth.routes import create_protected_resource_routes
from mcp.server.auth.settings import AuthSettings
from pydantic import AnyHttpUrl
from starlette.applications import Starlette


async def named(issuer):
    settings = AuthSettings(
        issuer_url=issuer, resource_server_url="https://mcp.example/mcp", validate_token_resource=True)
    app = Starlette(routes=create_protected_resource_routes(settings.resource_server_url, [settings.issuer_url]))
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="https://mcp.example") as client:
        return (await client.get("/.well-known/oauth-protected-resource/mcp")).json()["authorization_servers"]


async def main():
    text = await named("https://auth.example")
    url = await named(AnyHttpUrl("https://auth.example"))
    print("given as a text:       ", json.dumps(text))
    print("given as an AnyHttpUrl:", json.dumps(url))
    sys.exit(0 if (text, url) == (["https://auth.example"], ["https://auth.example/"]) else 1)


asyncio.run(main())
PYTHON
"$directory/venv/bin/python" "$directory/finding.py"
