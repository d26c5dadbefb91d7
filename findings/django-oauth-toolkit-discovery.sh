#!/usr/bin/env bash
# django-oauth-toolkit 3.4.1 with Django 5.2.19 (PyPI), Python 3.11: the OpenID Connect document does not name the endpoints for
# revocation and introspection, which the server has, and which its other document, of RFC 8414, names.
#
# One would guess that both documents name the same endpoints. A client that finds the server by its OpenID Connect document,
# the only one that stands where its specification says with the URLs below a prefix, takes it for one that cannot revoke.
#
# Output seen:
#   /o/.well-known/openid-configuration:             token_endpoint
#   /o/.well-known/oauth-authorization-server:       introspection_endpoint revocation_endpoint token_endpoint
#   /.well-known/oauth-authorization-server/o:       404
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet --disable-pip-version-check django-oauth-toolkit==3.4.1 Django==5.2.19
cat >"$directory/urls.py" <<'PYTHON'
from django.urls import include, path

urlpatterns = [path("o/", include("oauth2_provider.urls", namespace="oauth2_provider"))]
PYTHON
cat >"$directory/finding.py" <<'PYTHON'
import sys
import django
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from django.conf import settings

key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
    serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
settings.configure(
    SECRET_KEY="s", ALLOWED_HOSTS=["*"], ROOT_URLCONF="urls",
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "oauth2_provider"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}, LOGGING_CONFIG=None,
    OAUTH2_PROVIDER={"OIDC_ENABLED": True, "OIDC_RSA_PRIVATE_KEY": key.decode()})
django.setup()
from django.test import Client

ENDPOINTS = {"token_endpoint", "revocation_endpoint", "introspection_endpoint"}


def named(path):
    answer = Client().get(path)
    found = sorted(ENDPOINTS & set(answer.json())) if answer.status_code == 200 else [str(answer.status_code)]
    print(f"{path + ':':48} {' '.join(found)}")
    return found


openid = named("/o/.well-known/openid-configuration")
below = named("/o/.well-known/oauth-authorization-server")
root = named("/.well-known/oauth-authorization-server/o")
sys.exit(0 if openid == ["token_endpoint"] and set(below) == ENDPOINTS and root == ["404"] else 1)
PYTHON
cd "$directory" && venv/bin/python finding.py
