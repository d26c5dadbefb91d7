"""The authorization server of the MCP SDK, with its data in memory and a page on which the user logs in."""

import asyncio
import secrets
import threading
import time

import uvicorn
from mcp.server.auth.provider import AccessToken, AuthorizationCode, RefreshToken, construct_redirect_uri
from mcp.server.auth.routes import create_auth_routes
from mcp.server.auth.settings import ClientRegistrationOptions, RevocationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.responses import HTMLResponse, RedirectResponse
from starlette.routing import Route

SCOPES = ["read"]


class Provider:
    """What the SDK leaves to its users: clients, codes and tokens."""

    def __init__(self, client, issuer):
        self.client, self.issuer = client, issuer
        self.pending, self.codes, self.access, self.refresh = {}, {}, {}, {}

    async def get_client(self, client_id):
        return self.client if client_id == self.client.client_id else None

    async def register_client(self, client_info):
        raise NotImplementedError

    async def authorize(self, client, params):
        ticket = secrets.token_urlsafe(16)
        self.pending[ticket] = params
        return f"{self.issuer}login?ticket={ticket}"

    def grant(self, ticket):
        params = self.pending.pop(ticket)
        code = AuthorizationCode(
            code=secrets.token_urlsafe(32),
            scopes=params.scopes or SCOPES,
            expires_at=time.time() + 60,
            client_id=self.client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            subject="ada",
        )
        self.codes[code.code] = code
        return construct_redirect_uri(str(params.redirect_uri), code=code.code, state=params.state)

    def tokens(self, scopes):
        access, refresh = secrets.token_urlsafe(32), secrets.token_urlsafe(32)
        owner = {"client_id": self.client.client_id, "scopes": scopes, "subject": "ada"}
        self.access[access] = AccessToken(token=access, expires_at=int(time.time()) + 3600, **owner)
        self.refresh[refresh] = RefreshToken(token=refresh, **owner)
        return OAuthToken(access_token=access, refresh_token=refresh, expires_in=3600, scope=" ".join(scopes))

    async def load_authorization_code(self, client, authorization_code):
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(self, client, authorization_code):
        del self.codes[authorization_code.code]
        return self.tokens(authorization_code.scopes)

    async def load_refresh_token(self, client, refresh_token):
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(self, client, refresh_token, scopes):
        del self.refresh[refresh_token.token]
        return self.tokens(scopes)

    async def load_access_token(self, token):
        return self.access.get(token)

    async def revoke_token(self, token):
        self.access.clear()
        self.refresh.clear()


class Server:
    answers = {"username": "ada", "password": "the password"}

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
        self.provider = Provider(client, self.issuer)
        routes = create_auth_routes(
            self.provider,
            AnyHttpUrl(base_url),
            client_registration_options=ClientRegistrationOptions(valid_scopes=SCOPES),
            revocation_options=RevocationOptions(enabled=True),
        )
        routes.append(Route("/login", self.login, methods=["GET", "POST"]))
        config = uvicorn.Config(Starlette(routes=routes), host="127.0.0.1", port=port, log_level="error")
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
