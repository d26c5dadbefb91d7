#!/usr/bin/env bash
# glewlwyd 2.7.5-3+deb12u1 (Debian 12): the discovery document does not name `client_credentials` and `refresh_token` in
# `grant_types_supported`, although both are switched on and the first is granted here; it names them as response types.
#
# One would look for grants in `grant_types_supported`, which is there for them (RFC 8414, section 2), and take a grant that is
# not in the list for one that the server does not have. A client that checks the list refuses a server that works.
#
# Output seen:
#   grant_types_supported:     authorization_code implicit
#   response_types_supported:  code id_token code id_token client_credentials refresh_token
#   grant client_credentials:  200 access_token, token_type, expires_in, scope
set -euo pipefail
directory=$(mktemp -d)
server=
stop() {
    if [ -n "$server" ]; then
        kill "$server"
        wait "$server" || true
    fi
    rm -rf "$directory"
}
trap stop EXIT
mkdir "$directory/packages" "$directory/root"
cd "$directory/packages"
wanted=(glewlwyd=2.7.5-3+deb12u1 glewlwyd-common)
mapfile -t libraries < <(apt-cache depends glewlwyd | awk '$1 ~ /Depends:$/ && $2 ~ /^lib/ {print $2}')
apt-get -s --no-install-recommends install "${libraries[@]}" 2>/dev/null | awk '$1 == "Inst" && $3 !~ /^\[/ {print $2}' |
    xargs apt-get -qq -o APT::Sandbox::User=root download "${wanted[@]}"
for package in *.deb; do dpkg-deb -x "$package" "$directory/root"; done
cd "$directory"
root=$directory/root
port=$(python3 -c 'import socket; print(socket.create_server(("127.0.0.1", 0)).getsockname()[1])')
python3 -c 'import sqlite3, sys; sqlite3.connect("db").executescript(open(sys.argv[1]).read())' \
    "$root/usr/share/dbconfig-common/data/glewlwyd/install/sqlite3"
openssl genrsa -out key.pem 2048 2>/dev/null
openssl rsa -in key.pem -pubout -out public.pem 2>/dev/null
cat >glewlwyd.conf <<CONF
port = $port
bind_address = "127.0.0.1"
external_url = "http://127.0.0.1:$port"
login_url = "login.html"
api_prefix = "api"
static_files_path = "$root/usr/share/glewlwyd/webapp/"
log_mode = "console"
log_level = "WARNING"
cookie_secure = 0
session_expiration = 3600
session_key = "session"
admin_scope = "g_admin"
profile_scope = "g_profile"
user_module_path = "$root/usr/lib/glewlwyd/user"
user_middleware_module_path = "$root/usr/lib/glewlwyd/user_middleware"
client_module_path = "$root/usr/lib/glewlwyd/client"
user_auth_scheme_module_path = "$root/usr/lib/glewlwyd/scheme"
plugin_module_path = "$root/usr/lib/glewlwyd/plugin"
hash_algorithm = "SHA512"
database = { type = "sqlite3", path = "$directory/db" };
CONF
LD_LIBRARY_PATH=$(printf '%s:' "$root"/usr/lib/*-linux-gnu) "$root/usr/bin/glewlwyd" --config-file=glewlwyd.conf >log 2>&1 &
server=$!
cat >finding.py <<'PYTHON'
import http.cookiejar, json, sys, time, urllib.error, urllib.parse, urllib.request

BASE = f"http://127.0.0.1:{sys.argv[1]}"
opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))


def api(path, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(BASE + "/api" + path, data, {"Content-Type": "application/json"})
    return opener.open(request, timeout=10).read()


def token(**form):
    form.update(client_id="client", client_secret="secret")
    try:
        answer = opener.open(BASE + "/api/oidc/token", urllib.parse.urlencode(form).encode(), timeout=10)
    except urllib.error.HTTPError as error:
        answer = error
    return answer.status, answer.read().decode()


for _ in range(100):
    try:
        api("/../config")
        break
    except OSError:
        time.sleep(0.1)
api("/auth", {"username": "admin", "password": "password"})  # as the database is delivered
api("/mod/plugin/", {
    "module": "oidc", "name": "oidc", "display_name": "OpenID Connect",
    "parameters": {
        "iss": BASE + "/api/oidc", "jwt-type": "rsa", "jwt-key-size": "256", "key": open("key.pem").read(),
        "cert": open("public.pem").read(), "access-token-duration": 3600, "refresh-token-duration": 86400, "code-duration": 600,
        "refresh-token-rolling": True, "allow-non-oidc": True, "auth-type-code-enabled": True, "auth-type-token-enabled": False,
        "auth-type-none-enabled": False, "auth-type-password-enabled": False, "auth-type-client-enabled": True,
        "auth-type-device-enabled": False, "auth-type-refresh-enabled": True, "allowed-scope": ["openid", "music"],
        "subject-type": "public"}})
api("/scope/", {"name": "music", "display_name": "Music", "password_required": True, "password_max_age": 0, "scheme": {},
                "scheme_required": {}})
api("/client/", {
    "client_id": "client", "name": "Client", "enabled": True, "confidential": True, "client_secret": "secret",
    "scope": ["music"], "redirect_uri": ["http://127.0.0.1/callback"], "token_endpoint_auth_method": ["client_secret_post"],
    "authorization_type": ["code", "refresh_token", "client_credentials"]})
metadata = json.loads(api("/oidc/.well-known/openid-configuration"))
status, body = token(grant_type="client_credentials", scope="music")
print("grant_types_supported:    ", *metadata["grant_types_supported"])
print("response_types_supported: ", *metadata["response_types_supported"])
print("grant client_credentials: ", status, ", ".join(json.loads(body)))
grants = {"client_credentials", "refresh_token"}
unnamed = not grants & set(metadata["grant_types_supported"]) and grants <= set(metadata["response_types_supported"])
sys.exit(0 if unnamed and status == 200 else 1)
PYTHON
python3 finding.py "$port"
