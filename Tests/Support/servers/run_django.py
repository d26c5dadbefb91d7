"""django-oauth-toolkit: a Django site with its URLs below /o/, as its tutorial has them, and OpenID Connect switched on."""

import socketserver
import threading
import wsgiref.simple_server

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa


class QuietHandler(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, *arguments):
        pass


class ThreadingServer(socketserver.ThreadingMixIn, wsgiref.simple_server.WSGIServer):
    daemon_threads = True


LOGIN = "<form method='post'>{% csrf_token %}{{ form.as_p }}<button type='submit'>Log in</button></form>"


class Server:
    answers = {"username": "ada", "password": "the password", "buttons": ["allow"]}
    protected = "/api"

    def __init__(self, base_url, port, directory, options):
        import django
        from django.conf import settings

        key = rsa.generate_private_key(public_exponent=65537, key_size=2048).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        settings.configure(
            DEBUG=False,
            SECRET_KEY="of a test",
            ALLOWED_HOSTS=["127.0.0.1"],
            ROOT_URLCONF="run_django_urls",
            USE_TZ=True,
            INSTALLED_APPS=[
                "django.contrib.auth",
                "django.contrib.contenttypes",
                "django.contrib.sessions",
                "oauth2_provider",
            ],
            MIDDLEWARE=[
                "django.contrib.sessions.middleware.SessionMiddleware",
                "django.middleware.csrf.CsrfViewMiddleware",
                "django.contrib.auth.middleware.AuthenticationMiddleware",
            ],
            PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
            DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": str(directory / "database")}},
            TEMPLATES=[
                {
                    "BACKEND": "django.template.backends.django.DjangoTemplates",
                    "OPTIONS": {
                        "loaders": [
                            ("django.template.loaders.locmem.Loader", {"registration/login.html": LOGIN}),
                            "django.template.loaders.app_directories.Loader",
                        ],
                        "context_processors": ["django.template.context_processors.request"],
                    },
                }
            ],
            LOGGING_CONFIG=None,
            OAUTH2_PROVIDER={
                "OIDC_ENABLED": True,
                "OIDC_RSA_PRIVATE_KEY": key.decode(),
                "SCOPES": {"openid": "OpenID Connect", "read": "Reading"},
                "ACCESS_TOKEN_EXPIRE_SECONDS": options.get("access_token_lifetime", 3600),
            },
        )
        django.setup()
        from django.contrib.auth import get_user_model
        from django.core.management import call_command
        from django.core.wsgi import get_wsgi_application
        from oauth2_provider.models import get_application_model

        call_command("migrate", verbosity=0)
        get_user_model().objects.create_user("ada", password="the password")
        application = get_application_model()
        self.client_id, self.client_secret = "the client", "s+cret/with=reserved%&:chars"
        application.objects.create(
            client_id=self.client_id,
            client_secret=self.client_secret,
            client_type=application.CLIENT_CONFIDENTIAL,
            authorization_grant_type=application.GRANT_AUTHORIZATION_CODE,
            redirect_uris=options["redirect_uri"],
            algorithm=application.RS256_ALGORITHM,
        )
        server = ThreadingServer(("127.0.0.1", port), QuietHandler)
        server.set_app(get_wsgi_application())
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.issuer = base_url + "/o"
        self.token_endpoint = self.issuer + "/token/"
        self.authorization_endpoint = self.issuer + "/authorize/"
        self.revocation_endpoint = self.issuer + "/revoke_token/"

    def end_sessions(self):
        from oauth2_provider.models import get_refresh_token_model

        for token in get_refresh_token_model().objects.filter(revoked=None):
            token.revoke()

    def count_sessions(self):
        from oauth2_provider.models import get_refresh_token_model

        return get_refresh_token_model().objects.filter(revoked=None).count()
