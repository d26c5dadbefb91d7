#!/usr/bin/env python3
"""An app that uses requests-oauthlib: requests_app.py BROKER CLIENT_ID SECRET REDIRECT_URI

An empty secret makes a public client.
"""

import os
import sys

import requests
from oauthlib.oauth2 import InvalidGrantError
from requests_oauthlib import OAuth2Session

from browser import visit

# The library wants TLS, and this broker listens on loopback.
os.environ["OAUTHLIB_INSECURE_TRANSPORT"] = "1"
# The provider grants what the tenant is configured for.
os.environ["OAUTHLIB_RELAX_TOKEN_SCOPE"] = "1"

broker, client_id, secret, redirect_uri = sys.argv[1:]
app = OAuth2Session(client_id, redirect_uri=redirect_uri, pkce="S256")
address, _ = app.authorization_url(broker + "/oauth2/authorize")
answer = visit(address, redirect_uri)
credentials = {"client_secret": secret} if secret else {"include_client_id": True}
token = app.fetch_token(broker + "/oauth2/token", authorization_response=answer, **credentials)
print("access token", token["access_token"])
first = token["refresh_token"]
token = app.refresh_token(
    broker + "/oauth2/token",
    refresh_token=first,
    client_id=client_id,
    **({"client_secret": secret} if secret else {}),
)
assert token["access_token"] and token["refresh_token"] != first, token
print("refreshed")
# The library has no call for RFC 7009.
revoked = requests.post(
    broker + "/oauth2/revoke",
    data={"token": token["refresh_token"], "client_id": client_id, "client_secret": secret},
    timeout=20,
)
assert revoked.status_code == 200, revoked.text
try:
    app.refresh_token(
        broker + "/oauth2/token",
        refresh_token=token["refresh_token"],
        client_id=client_id,
        **({"client_secret": secret} if secret else {}),
    )
    sys.exit("a revoked token is good")
except InvalidGrantError:
    pass
print("revoked")
