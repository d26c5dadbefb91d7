"""The authorization server of the MCP SDK, with its data in memory and a page on which the user logs in, and an MCP server
at `/mcp` that wants its tokens, made for it (RFC 8707). Clients may register themselves; one is registered from the beginning."""

import asyncio
import secrets
import threading
import time

import httpx2
import uvicorn
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client
from mcp.server.auth.provider import AccessToken, AuthorizationCode, RefreshToken, construct_redirect_uri
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions, RevocationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl
from starlette.responses import HTMLResponse, RedirectResponse
from starlette.routing import Route

SCOPES = ["read"]


class Provider:
    """What the SDK leaves to its users: clients, codes and tokens."""

    def __init__(self, client, issuer, lifetime):
        self.clients, self.issuer, self.lifetime = {client.client_id: client}, issuer, lifetime
        self.pending, self.codes, self.access, self.refresh = {}, {}, {}, {}

    async def get_client(self, client_id):
        return self.clients.get(client_id)

    async def register_client(self, client_info):
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client, params):
        ticket = secrets.token_urlsafe(16)
        self.pending[ticket] = (client.client_id, params)
        return f"{self.issuer}login?ticket={ticket}"

    def grant(self, ticket):
        client_id, params = self.pending.pop(ticket)
        code = AuthorizationCode(
            code=secrets.token_urlsafe(32),
            scopes=params.scopes or SCOPES,
            expires_at=time.time() + 60,
            client_id=client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
            subject="ada",
        )
        self.codes[code.code] = code
        return construct_redirect_uri(str(params.redirect_uri), code=code.code, state=params.state)

    def tokens(self, client, scopes, resource):
        access, refresh = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        owner = {"client_id": client.client_id, "scopes": scopes, "subject": "ada", "resource": resource}
        self.access[access] = AccessToken(token=access, expires_at=int(time.time()) + self.lifetime, **owner)
        self.refresh[refresh] = RefreshToken(token=refresh, **owner)
        return OAuthToken(
            access_token=access, refresh_token=refresh, expires_in=self.lifetime, scope=" ".join(scopes)
        )

    async def load_authorization_code(self, client, authorization_code):
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(self, client, authorization_code):
        del self.codes[authorization_code.code]
        return self.tokens(client, authorization_code.scopes, authorization_code.resource)

    async def load_refresh_token(self, client, refresh_token):
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(self, client, refresh_token, scopes):
        del self.refresh[refresh_token.token]
        return self.tokens(client, scopes, refresh_token.resource)

    async def load_access_token(self, token):
        return self.access.get(token)

    async def revoke_token(self, token):
        self.access.clear()
        self.refresh.clear()


def find_book(title: str) -> str:
    """Where a book stands."""
    return f"{title}: second shelf"


class Server:
    answers = {"username": "ada", "password": "the password"}
    protected = "/mcp"

    def __init__(self, base_url, port, directory, options):
        # The SDK's metadata have a slash at the end of an issuer without a path.
        self.issuer = base_url + "/"
        self.token_endpoint = base_url + "/token"
        self.authorization_endpoint = base_url + "/authorize"
        self.revocation_endpoint = base_url + "/revoke"
        client = OAuthClientInformationFull(
            client_id="the client",
            client_secret="s+cret/with=reserved%&:chars",
            redirect_uris=[options["redirect_uri"]],
            token_endpoint_auth_method="client_secret_basic",
            grant_types=["authorization_code", "refresh_token"],
            response_types=["code"],
            scope=" ".join(SCOPES),
        )
        self.client_id, self.client_secret = client.client_id, client.client_secret
        self.provider = Provider(client, self.issuer, options.get("access_token_lifetime", 3600))
        self.resource = base_url + "/mcp"
        tools = MCPServer(
            "library",
            auth_server_provider=self.provider,
            auth=AuthSettings(
                issuer_url=AnyHttpUrl(base_url),
                resource_server_url=AnyHttpUrl(self.resource),
                required_scopes=SCOPES,
                validate_token_resource=True,
                client_registration_options=ClientRegistrationOptions(enabled=True, valid_scopes=SCOPES),
                revocation_options=RevocationOptions(enabled=True),
            ),
        )
        tools.add_tool(find_book)
        # Without sessions, no stream stays open that the proxy in front would wait for.
        app = tools.streamable_http_app(stateless_http=True, json_response=True)
        app.router.routes.append(Route("/login", self.login, methods=["GET", "POST"]))
        config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error")
        server = uvicorn.Server(config)
        threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True).start()
        deadline = time.monotonic() + 20
        while not server.started:
            if time.monotonic() > deadline:
                raise RuntimeError("uvicorn did not start")
            time.sleep(0.02)

    async def login(self, request):
        form = await request.form()
        if form.get("username") == "ada" and form.get("password") == "the password":
            return RedirectResponse(self.provider.grant(request.query_params["ticket"]), status_code=302)
        return HTMLResponse(
            "<form method='post'><input name='username'><input name='password' type='password'><button>Go</button></form>"
        )

    def end_sessions(self):
        self.provider.access.clear()
        self.provider.refresh.clear()

    def count_sessions(self):
        return len(self.provider.refresh)

    def forget_clients(self):
        """What a restart does to a server whose data are in memory."""
        self.provider.clients.clear()
        self.end_sessions()

    def use_tool(self, token):
        """What the SDK's client gets from the MCP server with a token."""

        async def use():
            async with httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}) as http:
                async with Client(streamable_http_client(self.resource, http_client=http)) as client:
                    tools = await client.list_tools()
                    answer = await client.call_tool(tools.tools[0].name, {"title": "Faust"})
                    return answer.content[0].text

        return asyncio.run(use())
