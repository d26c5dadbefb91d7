#!/usr/bin/env bash
# Authlib 1.6.5, django-oauth-toolkit 3.4.1 and Django 5.2.19 (PyPI), Python 3.11: Authlib's client joins identifier and secret
# for HTTP Basic as they are, and django-oauth-toolkit decodes both as a form does, so that some secrets are refused.
#
# RFC 6749, section 2.3.1, has the client encode them, which the server goes by. One would guess that two libraries for the same
# RFC work with each other by its preferred method, whatever the secret. With a plus in it, the token endpoint answers
# `invalid_client`; the same secret in the form is accepted.
#
# Output seen:
#   secret abc, by Basic: 200
#   secret a+c, by Basic: 401 invalid_client
#   secret a+c, in form:  200
set -euo pipefail
directory=$(mktemp -d)
trap 'rm -rf "$directory"' EXIT
python3 -m venv "$directory/venv"
"$directory/venv/bin/pip" install --quiet --disable-pip-version-check Authlib==1.6.5 django-oauth-toolkit==3.4.1 Django==5.2.19
cat >"$directory/urls.py" <<'PYTHON'
from django.urls import include, path

urlpatterns = [path("o/", include("oauth2_provider.urls", namespace="oauth2_provider"))]
PYTHON
cat >"$directory/finding.py" <<'PYTHON'
import logging, sys
import django
from django.conf import settings

settings.configure(
    SECRET_KEY="s", ALLOWED_HOSTS=["*"], ROOT_URLCONF="urls", USE_TZ=True, LOGGING_CONFIG=None,
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "oauth2_provider"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
django.setup()
logging.disable()
from authlib.oauth2.auth import ClientAuth
from django.core.management import call_command
from django.test import Client
from oauth2_provider.models import Application

call_command("migrate", verbosity=0)


def request(secret, method):
    """A token request of Authlib's client, sent to the server."""
    Application.objects.update_or_create(client_id="client", defaults={
        "client_secret": secret, "client_type": "confidential", "authorization_grant_type": "client-credentials"})
    _, headers, body = ClientAuth("client", secret, method).prepare(
        "POST", "http://127.0.0.1/o/token/", {}, "grant_type=client_credentials")
    answer = Client().post("/o/token/", body, content_type="application/x-www-form-urlencoded", headers=headers)
    how = "by Basic:" if method == "client_secret_basic" else "in form: "
    print(f"secret {secret}, {how}", answer.status_code, *[answer.json()[name] for name in answer.json() if name == "error"])
    return answer.status_code


found = [request("abc", "client_secret_basic"), request("a+c", "client_secret_basic"), request("a+c", "client_secret_post")]
sys.exit(0 if found == [200, 401, 200] else 1)
PYTHON
cd "$directory" && venv/bin/python finding.py
