#!/usr/bin/env python3
"""An app that uses Authlib: authlib_app.py BROKER CLIENT_ID SECRET REDIRECT_URI

The addresses come from the broker's metadata. An empty secret makes a public client.
"""

import sys

import requests
from authlib.common.security import generate_token
from authlib.integrations.base_client.errors import OAuthError
from authlib.integrations.requests_client import OAuth2Session

from browser import visit

broker, client_id, secret, redirect_uri = sys.argv[1:]
metadata = requests.get(broker + "/.well-known/oauth-authorization-server", timeout=20).json()
assert metadata["issuer"] == broker, metadata
app = OAuth2Session(
    client_id,
    secret or None,
    redirect_uri=redirect_uri,
    code_challenge_method="S256",
    token_endpoint_auth_method="client_secret_basic" if secret else "none",
    token_endpoint=metadata["token_endpoint"],
    revocation_endpoint_auth_method="client_secret_basic" if secret else "none",
)
verifier = generate_token(48)
address, state = app.create_authorization_url(metadata["authorization_endpoint"], code_verifier=verifier)
answer = visit(address, redirect_uri)
token = app.fetch_token(authorization_response=answer, state=state, code_verifier=verifier)
print("access token", token["access_token"])
first = token["refresh_token"]
token = app.refresh_token(metadata["token_endpoint"], refresh_token=first)
assert token["access_token"] and token["refresh_token"] != first, token
print("refreshed")
revoked = app.revoke_token(metadata["revocation_endpoint"], token=token["refresh_token"], token_type_hint="refresh_token")
assert revoked.status_code == 200, revoked.text
try:
    app.refresh_token(metadata["token_endpoint"], refresh_token=token["refresh_token"])
    sys.exit("a revoked token is good")
except OAuthError as error:
    assert error.error == "invalid_grant", error
print("revoked")
