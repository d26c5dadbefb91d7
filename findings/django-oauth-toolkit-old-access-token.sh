#!/usr/bin/env bash
# django-oauth-toolkit 3.4.1 with Django 5.2.19 (PyPI), Python 3.11: a refresh ends the access token that was granted before, at
# once, whatever is left of its lifetime.
#
# One would guess that an access token lives until the time that its answer named, as at most servers: a caller that refreshes ahead
# of the end takes the token away from all who use it at that moment.
#
# Output seen:
#   before the refresh: the access token is valid, with more than 3500 s left
#   after the refresh:  the access token is not valid
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
from datetime import timedelta
import django
from django.conf import settings

settings.configure(
    SECRET_KEY="s", ALLOWED_HOSTS=["*"], ROOT_URLCONF="urls", USE_TZ=True,
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "oauth2_provider"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}, LOGGING_CONFIG=None,
    OAUTH2_PROVIDER={"ACCESS_TOKEN_EXPIRE_SECONDS": 3600})
django.setup()
from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.test import Client
from django.utils import timezone
from oauth2_provider.models import AccessToken, Application, RefreshToken

call_command("migrate", verbosity=0)
user = get_user_model().objects.create_user("ada")
application = Application.objects.create(
    client_id="client", client_secret="secret", client_type="confidential",
    authorization_grant_type="authorization-code", redirect_uris="http://127.0.0.1/callback")
access = AccessToken.objects.create(
    user=user, application=application, token="first", scope="read", expires=timezone.now() + timedelta(hours=1))
RefreshToken.objects.create(user=user, application=application, token="refresh", access_token=access)


def is_valid():
    token = AccessToken.objects.filter(token="first").first()
    return token is not None and token.is_valid()


before = is_valid()
print("before the refresh: the access token is", "valid, with more than 3500 s left" if before else "not valid")
answer = Client().post(
    "/o/token/", {"grant_type": "refresh_token", "refresh_token": "refresh", "client_id": "client", "client_secret": "secret"})
after = is_valid()
print("after the refresh:  the access token is", "valid" if after else "not valid")
sys.exit(0 if answer.status_code == 200 and before and not after else 1)
PYTHON
cd "$directory" && venv/bin/python finding.py
