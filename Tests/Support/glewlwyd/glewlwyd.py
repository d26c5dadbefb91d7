#!/usr/bin/env python3
"""Runs one Glewlwyd (Debian's OAuth 2.0 / OpenID Connect server) for one test and stands in for its user's browser.

    glewlwyd.py <directory for ./install> <options as one JSON object>

It has ./install unpack the server into the directory, unless that was done before, starts the server on a free loopback port with a database of its own in a temporary directory, configures it through
its REST API, writes one line of JSON about it to standard output, and then answers each line of JSON on standard input
with one line of its own:

    {"command": "log_in", "url": "..."}            {"redirect": "https://...?code=..."}
    {"command": "approve_device", "user_code": ""} {"redirect": "http://...?prompt=deviceComplete"}
    {"command": "revoke_refresh_tokens"}           {"revoked": 1}
    {"command": "count_sessions"}                  {"sessions": 1}
    {"command": "post", "url": "", "form": {}}     {"status": 400, "body": "..."}
    anything that fails                            {"error": "..."}

The end of standard input ends the server and removes the directory. So whatever becomes of the test process, killed
included, nothing stays behind; and the server itself dies with this process by PR_SET_PDEATHSIG.

Only Python's standard library is used.
"""

import ctypes
import http.client
import json
import os
import pathlib
import secrets
import shutil
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import tempfile
import time
import urllib.parse

ADMINISTRATOR = {"username": "admin", "password": "password"}  # what Glewlwyd's own initial database holds
USERNAME = "ada"
CLIENT_ID = "token-broker-test"
SCOPES = ["music"]
# A request for the scope `openid` must carry a `nonce` here, a plain OAuth 2.0 request need not.
USER_SCOPES = ["g_profile", "openid"] + SCOPES

START_DEADLINE_S = 20
REQUEST_TIMEOUT_S = 10
STOP_DEADLINE_S = 5
MAXIMUM_REDIRECTS = 10


class Failure(Exception):
    """What a test is told. Never holds a password or a token."""


class Browser:
    """HTTP/1.1 requests to one origin with its cookies, redirects left to the caller."""

    def __init__(self, base_url, tls=None):
        self.base_url = base_url
        self.tls = tls
        self.authority = urllib.parse.urlsplit(base_url).netloc
        self.cookies = {}

    def request(self, method, url, body=None, form=None):
        target = urllib.parse.urlsplit(urllib.parse.urljoin(self.base_url + "/", url))
        if target.netloc != self.authority:
            raise Failure(f"asked for a page of {target.netloc}, not of the server")
        headers = {"Accept": "text/html, application/json"}
        if self.cookies:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if body is not None:
            body = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        if form is not None:
            body = urllib.parse.urlencode(form).encode()
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        if self.tls is None:
            connection = http.client.HTTPConnection(self.authority, timeout=REQUEST_TIMEOUT_S)
        else:
            connection = http.client.HTTPSConnection(self.authority, timeout=REQUEST_TIMEOUT_S, context=self.tls)
        try:
            path = urllib.parse.urlunsplit(("", "", target.path, target.query, ""))
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        for cookie in response.headers.get_all("Set-Cookie", []):
            name, _, value = cookie.split(";", 1)[0].partition("=")
            self.cookies[name.strip()] = value.strip()
        return response, content

    def api(self, method, path, body=None):
        """A call of the server's own JSON API; what is not 200 is a failure."""
        response, content = self.request(method, "/api" + path, body)
        if response.status != 200:
            raise Failure(f"{method} /api{path}: {response.status} {content.decode(errors='replace')[:500]}")
        return json.loads(content) if content else None


class Server:
    def __init__(self, root, options):
        self.root = root
        self.options = options
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="glewlwyd-"))
        self.process = None
        self.tls = None
        self.password = secrets.token_urlsafe(24)
        self.client_secret = secrets.token_urlsafe(32)

    # Starting and stopping

    def start(self):
        if self.options.get("speaks_tls"):
            self.make_certificates()
            self.tls = ssl.create_default_context(cafile=self.directory / "ca.pem")
        # The port is free when it is chosen and may be taken a moment later; then another one is.
        for _ in range(5):
            if self.start_once():
                self.configure()
                return
        raise Failure(f"glewlwyd does not start:\n{self.log()}")

    def start_once(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.base_url = f"{'http' if self.tls is None else 'https'}://127.0.0.1:{self.port}"
        self.issuer = f"{self.base_url}/api/oidc"
        database = self.directory / "glewlwyd.db"
        database.unlink(missing_ok=True)
        with sqlite3.connect(database) as connection:
            script = self.root / "usr/share/dbconfig-common/data/glewlwyd/install/sqlite3"
            connection.executescript(script.read_text())
        connection.close()
        configuration = self.directory / "glewlwyd.conf"
        configuration.write_text(self.configuration(database))

        environment = dict(os.environ)
        multiarch = [str(path) for part in ("usr/lib", "lib") for path in self.root.glob(part + "/*-linux-gnu*")]
        environment["LD_LIBRARY_PATH"] = ":".join(multiarch)
        libc = ctypes.CDLL(None, use_errno=True)
        parent = os.getpid()

        def die_with_parent():
            libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
            if os.getppid() != parent:
                os._exit(1)

        with open(self.directory / "log", "ab") as log:
            self.process = subprocess.Popen(
                [self.root / "usr/bin/glewlwyd", f"--config-file={configuration}"],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory, env=environment,
                preexec_fn=die_with_parent)
        return self.wait_until_it_answers()

    def wait_until_it_answers(self):
        """False where the process ended by itself, as it does when the port is taken."""
        deadline = time.monotonic() + START_DEADLINE_S
        while self.process.poll() is None:
            try:
                # Not just any answer: in the meantime another process may listen on this port.
                response, content = self.browser().request("GET", "/config")
                if response.status == 200 and json.loads(content).get("api_prefix") == "api":
                    return True
            except (OSError, ValueError, http.client.HTTPException):
                pass
            if time.monotonic() > deadline:
                raise Failure(f"glewlwyd does not answer after {START_DEADLINE_S} s:\n{self.log()}")
            time.sleep(0.02)
        return False

    def browser(self):
        return Browser(self.base_url, self.tls)

    def stop(self):
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_DEADLINE_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def log(self):
        try:
            return (self.directory / "log").read_text(errors="replace")[-3000:]
        except OSError:
            return "(no log)"

    # Configuration

    def configuration(self, database):
        modules = self.root / "usr/lib/glewlwyd"
        # Even `use_secure_connection = false` makes it look for a certificate.
        tls = "" if self.tls is None else f"""
use_secure_connection = true
secure_connection_key_file = "{self.directory}/server.key"
secure_connection_pem_file = "{self.directory}/server.pem"
"""
        return f"""{tls}
port = {self.port}
bind_address = "127.0.0.1"
external_url = "{self.base_url}"
login_url = "login.html"
api_prefix = "api"
static_files_path = "{self.root}/usr/share/glewlwyd/webapp/"
log_mode = "console"
log_level = "WARNING"
cookie_secure = 0
session_expiration = 2419200
session_key = "GLEWLWYD2_SESSION_ID"
admin_scope = "g_admin"
profile_scope = "g_profile"
user_module_path = "{modules}/user"
user_middleware_module_path = "{modules}/user_middleware"
client_module_path = "{modules}/client"
user_auth_scheme_module_path = "{modules}/scheme"
plugin_module_path = "{modules}/plugin"
hash_algorithm = "SHA512"
database = {{ type = "sqlite3", path = "{database}" }};
static_files_mime_types = ({{ extension = ".html", mime_type = "text/html" }});
"""

    def configure(self):
        administrator = self.browser()
        administrator.api("POST", "/auth", ADMINISTRATOR)
        administrator.api("POST", "/mod/plugin/", self.provider_module())
        administrator.api("POST", "/scope/", {
            "name": "music", "display_name": "Music", "description": "Listen to music",
            "password_required": True, "password_max_age": 0, "scheme": {}, "scheme_required": {},
        })
        administrator.api("POST", "/user/", {
            "username": USERNAME, "name": "Ada", "email": "ada@example.com", "password": self.password,
            "enabled": True, "scope": USER_SCOPES,
        })
        administrator.api("POST", "/client/", {
            "client_id": CLIENT_ID, "name": "Token broker under test", "enabled": True, "confidential": True,
            "client_secret": self.client_secret, "scope": ["music"],
            "redirect_uri": self.options["redirect_uris"],
            "authorization_type": ["code", "refresh_token", "client_credentials", "device_authorization"],
            **self.client_authentication(),
        })

    def client_authentication(self):
        """How the client may show itself: by its secret, or by a JWT of its key or of its secret and by nothing else."""
        if "client_key" in self.options:
            return {
                "token_endpoint_auth_method": ["private_key_jwt"], "jwks": {"keys": [self.options["client_key"]]},
            }
        if self.options.get("signs_with_secret"):
            return {"token_endpoint_auth_method": ["client_secret_jwt"]}
        return {"token_endpoint_auth_method": ["client_secret_basic", "client_secret_post"]}

    def provider_module(self):
        """The configuration of the OpenID provider, with a key that is new at each call."""
        private_key, public_key = self.signing_key()
        key_type = "ecdsa" if self.options.get("signs_with_ecdsa") else "rsa"
        return {
            "module": "oidc", "name": "oidc", "display_name": "OpenID Connect",
            "parameters": {
                "iss": self.issuer, "jwt-type": key_type, "jwt-key-size": "256", "key": private_key, "cert": public_key,
                "access-token-duration": self.options.get("access_token_duration", 3600),
                "refresh-token-duration": self.options.get("refresh_token_duration", 1209600),
                "code-duration": 600,
                "refresh-token-rolling": True,
                "refresh-token-one-use": "always" if self.options.get("rotates_refresh_tokens") else "never",
                # Plain OAuth 2.0 requests, among them client_credentials, which OpenID Connect does not have.
                "allow-non-oidc": True,
                "auth-type-code-enabled": True, "auth-type-token-enabled": False,
                "auth-type-none-enabled": False, "auth-type-password-enabled": False,
                "auth-type-client-enabled": True, "auth-type-device-enabled": True,
                "auth-type-refresh-enabled": True, "auth-type-code-revoke-replayed": True,
                "oauth-as-iss-id": self.options.get("sends_issuer", True),
                "allowed-scope": ["openid"] + SCOPES, "jwks-show": True, "subject-type": "public",
                "pkce-allowed": True, "pkce-method-plain-allowed": False,
                "introspection-revocation-allowed": True, "introspection-revocation-allow-target-client": True,
                "device-authorization-expiration": 600,
                "device-authorization-interval": self.options.get("device_interval", 5),
                **self.pushed_requests(), **self.proofs(), **self.client_assertions(),
            },
        }

    def pushed_requests(self):
        """RFC 9126: `none`, `allowed`, or `required`."""
        use = self.options.get("pushed_requests", "none")
        if use == "none":
            return {}
        return {
            "oauth-par-allowed": True, "oauth-par-required": use == "required",
            "oauth-par-request_uri-prefix": "urn:ietf:params:oauth:request_uri:", "oauth-par-duration": 90,
        }

    def proofs(self):
        """RFC 9449: `none`, `without_nonce`, or `with_nonce`, of which each is good for two requests."""
        use = self.options.get("proofs", "none")
        if use == "none":
            return {}
        return {
            "oauth-dpop-allowed": True, "oauth-dpop-iat-duration": 60, "oauth-dpop-iat-gap-duration": 10,
            "oauth-dpop-nonce-mandatory": use == "with_nonce", "oauth-dpop-nonce-counter": 1,
        }

    def client_assertions(self):
        """RFC 7523. JWTs as clients' authentication are allowed together with requests that are JWTs."""
        if "client_key" not in self.options and not self.options.get("signs_with_secret"):
            return {}
        return {
            "request-parameter-allow": True, "request-maximum-exp": 3600, "client-jwks-parameter": "jwks",
        }

    def rotate_key(self):
        """Signs with a new key from now on, and publishes it in place of the one before."""
        administrator = self.browser()
        administrator.api("POST", "/auth", ADMINISTRATOR)
        administrator.api("PUT", "/mod/plugin/oidc", self.provider_module())
        administrator.api("PUT", "/mod/plugin/oidc/reset/")

    def signing_key(self):
        if self.options.get("signs_with_ecdsa"):
            # Glewlwyd publishes an x without its leading zero octets: each of these keys has one.
            while True:
                private_key = self.openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout")
                if self.openssl("ec", "-pubout", "-outform", "DER", input=private_key)[-64] == 0:
                    return private_key.decode(), self.openssl("ec", "-pubout", input=private_key).decode()
        private_key = self.openssl("genrsa", "2048")
        return private_key.decode(), self.openssl("rsa", "-pubout", input=private_key).decode()

    def make_certificates(self):
        """An authority of its own (ca.pem) and the server's certificate that it signed."""
        new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
        self.openssl("req", "-x509", *new_key, "-subj", "/CN=Glewlwyd test authority",
                     "-keyout", "ca.key", "-out", "ca.pem")
        self.openssl("req", "-x509", *new_key, "-subj", "/CN=127.0.0.1", "-CA", "ca.pem", "-CAkey", "ca.key",
                     "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost",
                     "-addext", "basicConstraints=critical,CA:FALSE",
                     "-keyout", "server.key", "-out", "server.pem")

    def openssl(self, *arguments, **options):
        return subprocess.run(
            ["openssl", *arguments], check=True, capture_output=True, cwd=self.directory, **options).stdout

    def description(self):
        response, content = self.browser().request("GET", "/api/oidc/.well-known/openid-configuration")
        if response.status != 200:
            raise Failure(f"no discovery document: {response.status}")
        metadata = json.loads(content)
        return {
            "process_id": self.process.pid, "base_url": self.base_url, "issuer": metadata["issuer"],
            "authorization_endpoint": metadata["authorization_endpoint"], "token_endpoint": metadata["token_endpoint"],
            "device_authorization_endpoint": metadata["device_authorization_endpoint"],
            "revocation_endpoint": metadata["revocation_endpoint"], "jwks_uri": metadata["jwks_uri"],
            "userinfo_endpoint": metadata["userinfo_endpoint"],
            "client_id": CLIENT_ID, "client_secret": self.client_secret, "scopes": SCOPES,
            "username": USERNAME, "password": self.password,
            "ca_file": "" if self.tls is None else str(self.directory / "ca.pem"),
        }

    # What a user does

    def log_in(self, url):
        """Opens an authorization URL, signs in and consents where the pages ask for it, and returns the first URL
        that leads away from the server, the client's redirect URI with its query, or the server's last page."""
        browser = self.browser()
        for _ in range(MAXIMUM_REDIRECTS):
            location = self.follow(browser, url)
            page = urllib.parse.urlsplit(location)
            if page.netloc != browser.authority:
                return location
            if not page.path.endswith("/login.html"):
                url = location
                continue
            fields = dict(urllib.parse.parse_qsl(page.query, keep_blank_values=True))
            if "client_id" not in fields:
                return location  # nothing to sign in for: a page that tells how it ended
            url = self.answer_login_page(browser, fields)
        raise Failure(f"more than {MAXIMUM_REDIRECTS} redirects")

    def approve_device(self, user_code):
        """Opens the verification URI with the code in it, signs in and consents; returns the page it ends on."""
        query = urllib.parse.urlencode({"code": user_code})
        page = self.log_in(f"{self.issuer}/device?{query}")
        if "prompt=deviceComplete" not in page:
            raise Failure(f"the user code was not accepted: {page}")
        return page

    def revoke_refresh_tokens(self):
        """Withdraws every session of the client, as the user may on the profile page; returns how many there were."""
        browser, tokens = self.refresh_tokens()
        for token in tokens:
            browser.api("DELETE", "/oidc/token/" + urllib.parse.quote(token["token_hash"], safe=""))
        return len(tokens)

    def refresh_tokens(self):
        """The browser of the user, and what the profile page shows of the refresh tokens that are alive."""
        browser = self.browser()
        browser.api("POST", "/auth", {"username": USERNAME, "password": self.password})
        return browser, [token for token in browser.api("GET", "/oidc/token") if token["enabled"]]

    def follow(self, browser, url):
        response, content = browser.request("GET", url)
        location = response.headers.get("Location")
        if response.status not in (301, 302, 303, 307) or location is None:
            raise Failure(f"no redirect but {response.status}: {content.decode(errors='replace')[:500]}")
        return urllib.parse.urljoin(url, location)

    def answer_login_page(self, browser, fields):
        """What login.js does with the page's query: POST the password, PUT the consent, go on to `callback_url`."""
        browser.api("POST", "/auth", {"username": USERNAME, "password": self.password})
        client = urllib.parse.quote(fields["client_id"], safe="")
        scope = urllib.parse.quote(fields["scope"], safe="")
        grant = browser.api("GET", f"/auth/grant/{client}/{scope}")
        names = " ".join(entry["name"] for entry in grant["scope"])
        browser.api("PUT", f"/auth/grant/{client}", {"scope": names})
        separator = "&" if "?" in fields["callback_url"] else "?"
        return fields["callback_url"] + separator + "g_continue"


def answer(server, line):
    try:
        request = json.loads(line)
        if request["command"] == "log_in":
            return {"redirect": server.log_in(request["url"])}
        if request["command"] == "approve_device":
            return {"redirect": server.approve_device(request["user_code"])}
        if request["command"] == "revoke_refresh_tokens":
            return {"revoked": server.revoke_refresh_tokens()}
        if request["command"] == "count_sessions":
            return {"sessions": len(server.refresh_tokens()[1])}
        if request["command"] == "rotate_key":
            server.rotate_key()
            return {"rotated": True}
        if request["command"] == "post":
            response, content = server.browser().request("POST", request["url"], form=request["form"])
            return {"status": response.status, "body": content.decode()}
        return {"error": f"no such command: {request['command']}"}
    except (Failure, OSError, ValueError, KeyError, http.client.HTTPException) as error:
        return {"error": f"{type(error).__name__}: {error}\n{server.log()}"}


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    # Turned into an exception, a signal takes the same way out as the end of input.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))
    directory = pathlib.Path(sys.argv[1]).resolve()
    server = Server(directory / "root", json.loads(sys.argv[2]))
    try:
        try:
            # What it has to say is for people: standard output belongs to the answers.
            install = pathlib.Path(__file__).resolve().parent / "install"
            subprocess.run([install, directory], check=True, stdin=subprocess.DEVNULL, stdout=sys.stderr)
            server.start()
            print(json.dumps(server.description()), flush=True)
        except (Failure, OSError, KeyError, subprocess.CalledProcessError, http.client.HTTPException) as error:
            print(json.dumps({"error": f"{type(error).__name__}: {error}\n{server.log()}"}), flush=True)
            sys.exit(1)
        for line in sys.stdin:
            print(json.dumps(answer(server, line)), flush=True)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
