#!/usr/bin/env bash
# Authlib 1.6.5 with Flask 3.1.3 (PyPI), Python 3.11: an authorization server that sets no lifetimes gives the access token of a
# login ten days, and the access token of a refresh one hour.
#
# One would guess one lifetime for the access tokens of one grant. What a client has learnt of the first token (when to
# refresh, how long a token may be kept) does not hold for the next.
#
# Output seen:
#   authorization_code: expires_in 864000
#   refresh_token:      expires_in 3600
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet --disable-pip-version-check Authlib==1.6.5 Flask==3.1.3
cat >"$directory/finding.py" <<'PYTHON'
import os, sys
os.environ["AUTHLIB_INSECURE_TRANSPORT"] = "1"
import flask
from authlib.integrations.flask_oauth2 import AuthorizationServer
from authlib.oauth2.rfc6749 import ClientMixin, TokenMixin, grants


class Client(ClientMixin):
    client_id = "client"
    def get_client_id(self): return "client"
    def get_allowed_scope(self, scope): return scope
    def check_redirect_uri(self, uri): return True
    def check_client_secret(self, secret): return secret == "secret"
    def check_endpoint_auth_method(self, method, endpoint): return True
    def check_grant_type(self, grant_type): return True


class Code:
    def get_redirect_uri(self): return "http://127.0.0.1/callback"
    def get_scope(self): return "read"


class Token(TokenMixin):
    def check_client(self, client): return True
    def get_scope(self): return "read"
    def is_revoked(self): return False


class CodeGrant(grants.AuthorizationCodeGrant):
    def query_authorization_code(self, code, client): return Code()
    def delete_authorization_code(self, code): pass
    def authenticate_user(self, code): return "user"


class RefreshGrant(grants.RefreshTokenGrant):
    def authenticate_refresh_token(self, token): return Token()
    def authenticate_user(self, token): return "user"
    def revoke_old_credential(self, token): pass


app = flask.Flask("finding")
app.config["OAUTH2_REFRESH_TOKEN_GENERATOR"] = True
server = AuthorizationServer(app, query_client=lambda name: Client(), save_token=lambda token, request: None)
server.register_grant(CodeGrant)
server.register_grant(RefreshGrant)
app.add_url_rule("/token", "token", server.create_token_response, methods=["POST"])


def lifetime(**form):
    answer = app.test_client().post("/token", data=form, auth=("client", "secret")).get_json()
    print(f"{form['grant_type'] + ':':19} expires_in {answer['expires_in']}")
    return answer["expires_in"]


login = lifetime(grant_type="authorization_code", code="c", redirect_uri="http://127.0.0.1/callback")
refresh = lifetime(grant_type="refresh_token", refresh_token="r")
sys.exit(0 if (login, refresh) == (864000, 3600) else 1)
PYTHON
"$directory/venv/bin/python" "$directory/finding.py"
