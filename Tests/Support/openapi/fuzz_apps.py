"""What Schemathesis cannot make up for the operations of apps: sessions, codes, challenges that are signed.

Hooks of Tests/Support/openapi/fuzz: a provider answers for the tenants of these requests, and every third request of the
operations of apps is made one that can succeed. EXCUSED says which refusals of requests that the description allows are
right. The counts of answers by operation are written to the file that FUZZ_COUNTS names, when Schemathesis ends.
"""

import atexit
import base64
import collections
import hashlib
import http.server
import itertools
import json
import os
import re
import secrets
import threading
import urllib.parse

import requests
import schemathesis
from schemathesis.openapi.checks import RejectedPositiveData

USERS, TENANT, SERVER_TENANT = "fuzz", "fuzz-apps", "fuzz-authgear"
APP, OTHER, INSIDE = "fuzz-app", "fuzz-other", "fuzz-inside"
REDIRECT_URI = "http://127.0.0.1:7/callback"
VERIFIER = "a-verifier-that-is-long-enough-for-every-server-0123456789"
CHALLENGE = base64.urlsafe_b64encode(hashlib.sha256(VERIFIER.encode()).digest()).rstrip(b"=").decode()
SETTINGS = {
    "name": "Player", "redirect_uris": ["http://127.0.0.1/callback"], "storage_key": "default",
    "refresh_token_rotation": False, "android_apps": [
        {"package_name": "com.example.player", "sha256_cert_fingerprints": [":".join(["14"] * 32)]}],
    "apple_apps": ["ABCDE12345.com.example.player"]}


class Provider(http.server.BaseHTTPRequestHandler):
    """The provider of all users: it grants whatever it is asked for."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        form = urllib.parse.parse_qs(self.rfile.read(int(self.headers.get("Content-Length", 0))).decode())
        if self.path.endswith("/device_authorization"):
            answer = {
                "device_code": secrets.token_urlsafe(), "user_code": "FUZZ", "verification_uri": "https://login.example",
                "expires_in": 60, "interval": 5}
        else:
            answer = {
                "access_token": "the-access-token", "refresh_token": "the-refresh-token", "token_type": "Bearer",
                "expires_in": 86400, "scope": "r_usr"}
            # A refresh must not bring another user than the one whose credentials a request has stored.
            if form.get("grant_type") != ["refresh_token"]:
                answer["user_id"] = 42
        content = json.dumps(answer)
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content.encode())

    def log_message(self, *_):
        pass


class World:
    """The broker, with a provider of apps' users, apps, and a tenant whose provider is the broker itself."""

    def __init__(self, base):
        self.base = base
        provider = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Provider)
        threading.Thread(target=provider.serve_forever, daemon=True).start()
        self.provider = f"http://127.0.0.1:{provider.server_address[1]}"
        self.prepare()

    def prepare(self):
        """Makes what is missing: what Schemathesis sends may delete any tenant."""
        headers = {"Authorization": f"Bearer {os.environ['ADMIN_KEY']}"}
        paths = (f"/tenants/{USERS}", f"/tenants/{TENANT}/clients/{APP}", f"/tenants/{SERVER_TENANT}")
        if all(requests.get(self.base + path, headers=headers, timeout=20).status_code == 200 for path in paths):
            return
        address, base = self.provider, self.base
        # The client of the examples in openapi.yaml, so that what they say about it is accepted.
        self.admin("PUT", f"/tenants/{USERS}", {
            "client_id": "Xs1bSVmCG9CmJ6oW", "scopes": ["r_usr", "w_usr"], "login_service_base_uri": address,
            "auth_service_base_uri": address, "endpoints": {"revocation": f"{address}/revoke"},
            "allowed_redirect_uris": ["app:/back"], "allowed_return_uris": ["https://app.example/done"]})
        self.admin("PUT", f"/tenants/{TENANT}", {
            "client_id": "fuzz", "scopes": ["r_usr"], "login_service_base_uri": address,
            "auth_service_base_uri": address})
        self.register(APP)
        self.register(OTHER)
        self.register(
            INSIDE, client_secret="the secret of a broker", redirect_uris=[f"{base}/login/callback"],
            x_app2app_enabled=True)
        self.admin("PUT", f"/tenants/{SERVER_TENANT}", {
            "provider": "authgear", "client_id": INSIDE, "client_secret": "the secret of a broker", "issuer": base,
            "endpoints": {"authorization": f"{base}/oauth2/authorize", "token": f"{base}/oauth2/token"},
            "app2app": {"enabled": True, "authorization_endpoints": [f"{base}/oauth2/authorize"]}})
        login = self.admin("POST", "/login/initialize", {}, SERVER_TENANT)
        browser = requests.Session()
        ended = browser.get(self.log_in(browser, login["login_uri"]), timeout=20)
        if ended.status_code != 200:
            raise SystemExit(f"fuzz: no login at the broker itself: {ended.status_code} {ended.text}")

    def admin(self, method, path, body=None, tenant=None):
        headers = {"Authorization": f"Bearer {os.environ['ADMIN_KEY']}"} | ({"X-Tenant": tenant} if tenant else {})
        answer = requests.request(method, self.base + path, json=body, headers=headers, timeout=20)
        if answer.status_code >= 300:
            raise SystemExit(
                f"fuzz: {method} {path}: {answer.status_code} {answer.text}\n"
                "The broker must run with TOKEN_BROKER_ALLOW_INSECURE_PROVIDERS=true.")
        return answer.json() if answer.content else None

    def register(self, client, **settings):
        self.admin("PUT", f"/tenants/{TENANT}/clients/{client}", SETTINGS | settings)

    def log_in(self, browser, address):
        """Goes through an app's login up to the app's redirect URI, and returns that with its query."""
        browser.headers["Accept"] = "text/html"
        at_provider = browser.get(address, allow_redirects=False, timeout=20).headers["Location"]
        state = urllib.parse.parse_qs(urllib.parse.urlsplit(at_provider).query)["state"][0]
        answer = browser.get(
            f"{self.base}/login/callback", params={"code": "c", "state": state}, allow_redirects=False, timeout=20)
        if "/login/confirm/" in answer.headers["Location"]:
            page = browser.post(
                answer.headers["Location"], data={"decision": "continue"}, headers={"Sec-Fetch-Site": "same-origin"},
                timeout=20)
            return re.search(r'href="([^"]*)"', page.text)[1].replace("&amp;", "&")
        return answer.headers["Location"]

    def authorization(self):
        return {
            "response_type": "code", "client_id": APP, "redirect_uri": REDIRECT_URI, "code_challenge": CHALLENGE,
            "code_challenge_method": "S256", "state": "s"}

    def code(self):
        query = urllib.parse.urlencode(self.authorization())
        address = self.log_in(requests.Session(), f"{self.base}/oauth2/authorize?{query}")
        return urllib.parse.parse_qs(urllib.parse.urlsplit(address).query)["code"][0]

    def exchange(self):
        return {
            "grant_type": "authorization_code", "client_id": APP, "code": self.code(), "redirect_uri": REDIRECT_URI,
            "code_verifier": VERIFIER}

    def session(self):
        """The refresh token of a new session."""
        answer = requests.post(f"{self.base}/oauth2/token", data=self.exchange(), timeout=20)
        return answer.json()["refresh_token"]

    def session_id(self):
        self.session()
        return self.admin("GET", f"/tenants/{TENANT}/sessions?client_id={APP}")["sessions"][-1]["session_id"]

    def link(self):
        query = urllib.parse.urlencode({
            "client_id": OTHER, "redirect_uri": REDIRECT_URI, "code_challenge": CHALLENGE,
            "code_challenge_method": "S256", "state": "s"})
        return f"https://app.example/authorize?{query}"


_world = None
_turn = itertools.count()
_counts = collections.defaultdict(collections.Counter)


def _prepare(name, case, world):
    """Makes the case of an operation one that can succeed."""
    world.prepare()
    in_tenant = {"tenant": TENANT}
    if name in ("listClients", "listSessions"):
        case.path_parameters, case.query = in_tenant, {}
    elif name in ("getClient", "putClient"):
        case.path_parameters = in_tenant | {"client_id": OTHER}
        if name == "putClient":
            case.body = SETTINGS
    elif name == "deleteClient":
        world.register("fuzz-gone")
        case.path_parameters = in_tenant | {"client_id": "fuzz-gone"}
    elif name == "deleteSession":
        case.path_parameters = in_tenant | {"session_id": world.session_id()}
    elif name == "authorize":
        case.query = world.authorization()
    elif name == "exchangeToken":
        case.body = world.exchange() if next(_turn) % 2 else {
            "grant_type": "refresh_token", "client_id": APP, "refresh_token": world.session()}
    elif name == "revokeToken":
        case.body = {"client_id": APP, "token": world.session()}
    elif name == "issueChallenge":
        case.body = {"purpose": "app2app_request"}
    elif name in ("readAppToAppRequest", "approveAppToAppRequest", "rejectAppToAppRequest"):
        case.headers["X-Tenant"] = SERVER_TENANT
        case.body = {"uri": world.link()}
    elif name in ("showAssetLinks", "showAppleAssociation", "showAuthorizationServer"):
        case.query = {}


# Everything that has to do with apps, and must have been answered with success once.
OPERATIONS = [
    "listClients", "getClient", "putClient", "deleteClient", "listSessions", "deleteSession", "authorize",
    "exchangeToken", "issueChallenge", "preflightChallenge", "revokeToken", "showAuthorizationServer",
    "showAssetLinks", "showAppleAssociation", "readAppToAppRequest", "approveAppToAppRequest", "rejectAppToAppRequest"]


def _name(case):
    return case.operation.definition.raw.get("operationId", case.operation.label)


# Refusals (400) of requests that the description allows: the operations, what the answer says of a member, and why the
# description cannot say it. Every fault that an answer names must be in here. Other statuses are in fuzz.toml.
EXCUSED = [(re.compile(operations), re.compile(fault, re.DOTALL)) for operations, fault in [
    # Lengths are in bytes of UTF-8, and maxLength counts characters.
    (".*", "/.* must not be longer than [0-9]+ bytes"),
    # A cursor is opaque: only the broker knows those that it has issued.
    ("list.*", "cursor is not the next_cursor of a list"),
    ("restoreCredentials", "/cursor is not the next_cursor of a restore"),
    # The query of a login's answer is a text of the provider's, with another syntax than JSON.
    ("finalizeLogin", "The response('s query is not well-formed| has no state)"),
    # Two fields that belong together.
    ("getCredentials", "DPoP-Htm and DPoP-Htu ask for a proof together"),
    # Schemathesis 4.32 holds "0" for an address by the pattern of this header. DPoPTests has both sides of the pattern.
    ("getCredentials", "DPoP-Htu must be an absolute http or https URI"),
    # An app may name itself in Authorization instead.
    ("revokeToken", "client_id is required"),
    # What an identity consists of (labels, segments, an issuer's address) is more than one pattern can say.
    ("createAPIKey", "/identity must be "),
    # The tenant of the path is one of a key's tenants.
    ("createAPIKey", "/tenants must name the tenant of the path"),
    # The description says once that names have at most 128 bytes; these are of members that are passed on and ignored.
    ("putCredentials", "/credentials/(session|degraded)/.* must not have a name of more than 128 bytes"),
    # Which ports and which names and addresses of hosts a URL may have is more than one pattern can say.
    ("putTenant", "/[a-z0-9_/]+ (must be an absolute http or https URL |must not have the port )"),
    ("putTenant", "/outbound_proxy must be http://host:port"),
    # Names that the broker writes itself, or that differ from another one by case only, are told in words.
    ("putTenant", "/request_headers/"),
    # Rules between members, most of them by the kind of provider, which is told in words.
    ("putTenant", "/[a-z0-9_/]+ (is not used with this provider|is required with this provider|is required$|needs |must not wait longer"
     "|must not have a longest_pause_ms|is not where the provider "
     "|is not used together with |must not be there beside )"),
    # What is in a PEM file is more than a pattern can say.
    ("putTenant", "/client_certificate must be PEM |/private_key is not a private key that can be used"),
    # Which placeholders a request's parameters may have is told in words.
    ("putTenant", "/(refresh|exchange_for_long_lived)/parameters/.* must be a text of 1024 bytes at most"),
    # A profile says which parameters its addresses have.
    ("putTenant", "/parameters/.* is not a parameter of the provider "),
    # Which profiles there are depends on what was put.
    ("putTenant", "/provider must be one of "),
    # The schema of profiles is in a file of its own.
    ("putProvider", "/.*"),
    # What comes of a change must be a valid configuration.
    ("patchTenant", "/.*"),
]]


def _faults(response):
    try:
        answer = response.json()
    except ValueError:
        return []
    faults = [f"{fault['pointer']} {fault['detail']}" for fault in answer.get("errors", [])]
    return faults or [answer.get("detail") or answer.get("error_description") or ""]


@schemathesis.serializer("application/x-ndjson")
def lines(context, value):
    """The text itself: the description's schema is of the whole body."""
    return value.encode() if isinstance(value, str) else json.dumps(value).encode()


@schemathesis.hook
def filter_failure(context, failure, case, response):
    if not isinstance(failure, RejectedPositiveData) or response.status_code != 400:
        return True
    faults, name = _faults(response), _name(case)
    wrong = [
        fault for fault in faults
        if not any(operations.fullmatch(name) and said.match(fault) for operations, said in EXCUSED)]
    # Schemathesis shows the beginning of an answer only.
    for fault in wrong:
        print(f"fuzz: {name} must not refuse: {fault}")
    return not faults or bool(wrong)


@schemathesis.hook
def after_load_schema(context, schema):
    global _world
    _world = World(os.environ["FUZZ_BASE"])


@schemathesis.hook
def before_call(context, case, kwargs):
    name = _name(case)
    if name in ("putTenant", "patchTenant", "deleteTenant") and str(case.path_parameters.get("tenant")).startswith("fuzz"):
        case.path_parameters = {"tenant": "music"}
    # The tenants of these requests have profiles that the broker carries.
    if name in ("putProvider", "deleteProvider") and str(case.path_parameters.get("name")) in ("oidc", "oauth2", "authgear", "tidal"):
        case.path_parameters = {"name": "acme"}
    if name not in OPERATIONS or case.method.upper() != case.operation.method.upper():
        return
    if sum(_counts[name].values()) % 3 == 0:
        _prepare(name, case, _world)


@schemathesis.hook
def after_call(context, case, response):
    _counts[_name(case)][str(response.status_code)] += 1


@atexit.register
def _write():
    path = os.environ.get("FUZZ_COUNTS")
    if not path or not _counts:
        return
    with open(path, "w", encoding="utf-8") as file:
        json.dump({name: dict(counts) for name, counts in _counts.items()}, file)


def _report(path):
    """Prints the answers by operation. Returns the operations of apps that were never answered with success."""
    with open(path, encoding="utf-8") as file:
        counts = json.load(file)
    for name in sorted(counts):
        print(f"{name:26}", "  ".join(f"{status} × {count}" for status, count in sorted(counts[name].items())))
    return [
        name for name in OPERATIONS if name in counts and not any(status < "400" for status in counts[name])]


if __name__ == "__main__":
    import sys

    missing = _report(sys.argv[1])
    if missing:
        sys.exit(f"fuzz: never answered with success: {', '.join(missing)}")
