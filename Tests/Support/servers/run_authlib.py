"""A Flask application with Authlib's authorization server, as Authlib's documentation builds one, with its data in memory."""

import secrets
import threading
import time
import wsgiref.simple_server

import flask
from authlib.integrations.flask_oauth2 import AuthorizationServer, ResourceProtector
from authlib.oauth2.rfc6749 import ClientMixin, TokenMixin, grants
from authlib.oauth2.rfc6750 import BearerTokenValidator
from authlib.oauth2.rfc7009 import RevocationEndpoint
from authlib.oauth2.rfc7636 import CodeChallenge

from run_django import QuietHandler, ThreadingServer

SCOPES = "read write"


class Client(ClientMixin):
    def __init__(self, client_id, client_secret, redirect_uri):
        self.client_id, self.client_secret, self.redirect_uri = client_id, client_secret, redirect_uri

    def get_client_id(self):
        return self.client_id

    def get_default_redirect_uri(self):
        return self.redirect_uri

    def get_allowed_scope(self, scope):
        return " ".join(name for name in (scope or "").split() if name in SCOPES.split())

    def check_redirect_uri(self, redirect_uri):
        return redirect_uri == self.redirect_uri

    def check_client_secret(self, client_secret):
        return secrets.compare_digest(client_secret, self.client_secret)

    def check_endpoint_auth_method(self, method, endpoint):
        return method == "client_secret_basic"

    def check_response_type(self, response_type):
        return response_type == "code"

    def check_grant_type(self, grant_type):
        return grant_type in ("authorization_code", "refresh_token")


class Code(dict):
    def get_redirect_uri(self):
        return self["redirect_uri"]

    def get_scope(self):
        return self["scope"]

    code_challenge = property(lambda self: self["code_challenge"])
    code_challenge_method = property(lambda self: self["code_challenge_method"])


class Token(dict, TokenMixin):
    revoked = False

    def check_client(self, client):
        return client.client_id == self["client_id"]

    def get_scope(self):
        return self["scope"]

    def get_expires_in(self):
        return self["expires_in"]

    def is_expired(self):
        return self["issued_at"] + self["expires_in"] < time.time()

    def is_revoked(self):
        return self.revoked


class Server:
    answers = {"username": "ada", "password": "the password", "buttons": ["allow"]}
    protected = "/api"

    def __init__(self, base_url, port, directory, options):
        self.lifetime = options.get("access_token_lifetime", 3600)
        self.client_id, self.client_secret = "the client", "s+cret/with=reserved%&:chars"
        self.client = Client(self.client_id, self.client_secret, options["redirect_uri"])
        self.codes, self.tokens = {}, []
        self.issuer = base_url
        self.token_endpoint = base_url + "/oauth/token"
        self.authorization_endpoint = base_url + "/oauth/authorize"
        self.revocation_endpoint = base_url + "/oauth/revoke"
        server = ThreadingServer(("127.0.0.1", port), QuietHandler)
        server.set_app(self.application())
        threading.Thread(target=server.serve_forever, daemon=True).start()

    def application(self):
        app = flask.Flask("authlib_server")
        app.config.update(
            OAUTH2_REFRESH_TOKEN_GENERATOR=True,
            OAUTH2_SCOPES_SUPPORTED=SCOPES.split(),
            OAUTH2_TOKEN_EXPIRES_IN={"authorization_code": self.lifetime, "refresh_token": self.lifetime},
        )
        state = self

        class CodeGrant(grants.AuthorizationCodeGrant):
            TOKEN_ENDPOINT_AUTH_METHODS = ["client_secret_basic", "client_secret_post"]

            def save_authorization_code(self, code, request):
                state.codes[code] = Code(
                    redirect_uri=request.payload.redirect_uri,
                    scope=request.payload.scope,
                    code_challenge=request.payload.data.get("code_challenge"),
                    code_challenge_method=request.payload.data.get("code_challenge_method"),
                )

            def query_authorization_code(self, code, client):
                return state.codes.get(code)

            def delete_authorization_code(self, authorization_code):
                state.codes = {key: code for key, code in state.codes.items() if code is not authorization_code}

            def authenticate_user(self, authorization_code):
                return "ada"

        class RefreshGrant(grants.RefreshTokenGrant):
            INCLUDE_NEW_REFRESH_TOKEN = True

            def authenticate_refresh_token(self, refresh_token):
                return state.find("refresh_token", refresh_token)

            def authenticate_user(self, refresh_token):
                return "ada"

            def revoke_old_credential(self, refresh_token):
                refresh_token.revoked = True

        class Revocation(RevocationEndpoint):
            def query_token(self, token_string, token_type_hint):
                return state.find("refresh_token", token_string) or state.find("access_token", token_string)

            def revoke_token(self, token, request):
                token.revoked = True

        class Validator(BearerTokenValidator):
            def authenticate_token(self, token_string):
                return state.find("access_token", token_string)

        def save_token(token, request):
            state.tokens.append(Token(token, client_id=request.client.client_id, issued_at=time.time()))

        oauth = AuthorizationServer(
            app, query_client=lambda name: self.client if name == self.client_id else None, save_token=save_token
        )
        oauth.register_grant(CodeGrant, [CodeChallenge(required=True)])
        oauth.register_grant(RefreshGrant)
        oauth.register_endpoint(Revocation)

        protector = ResourceProtector()
        protector.register_token_validator(Validator())

        @app.get("/api")
        @protector("read")
        def api():
            return {}

        @app.get("/.well-known/oauth-authorization-server")
        def metadata():
            return {
                "issuer": self.issuer,
                "authorization_endpoint": self.authorization_endpoint,
                "token_endpoint": self.token_endpoint,
                "revocation_endpoint": self.revocation_endpoint,
                "response_types_supported": ["code"],
                "grant_types_supported": ["authorization_code", "refresh_token"],
                "token_endpoint_auth_methods_supported": ["client_secret_basic"],
                "code_challenge_methods_supported": ["S256"],
            }

        @app.route("/oauth/authorize", methods=["GET", "POST"])
        def authorize():
            if flask.request.method == "GET":
                return (
                    "<form method='post'><input name='username'><input name='password' type='password'>"
                    "<button name='allow' value='yes'>Allow</button></form>"
                )
            form = flask.request.form
            is_user = form.get("username") == "ada" and form.get("password") == "the password"
            return oauth.create_authorization_response(grant_user="ada" if is_user and form.get("allow") else None)

        app.add_url_rule("/oauth/token", "token", oauth.create_token_response, methods=["POST"])
        app.add_url_rule(
            "/oauth/revoke", "revoke", lambda: oauth.create_endpoint_response("revocation"), methods=["POST"]
        )
        return app

    def find(self, kind, text):
        return next((token for token in self.tokens if token.get(kind) == text and not token.revoked), None)

    def end_sessions(self):
        for token in self.tokens:
            token.revoked = True

    def count_sessions(self):
        return sum("refresh_token" in token and not token.revoked for token in self.tokens)
