"""What other tools make of `token-broker token`: credential_tools.py TOOL PROGRAM EXPECTED.

TOOL is the name of a function below. The program gets the broker's address and key from the environment. Its tenant `web` has the
token EXPECTED, and its tenant `empty` has none. Prints `ok`; ends with a traceback where a tool does not get what it should.
"""
import http.server
import json
import os
import subprocess
import sys
import tempfile
import threading

TOOL, PROGRAM, EXPECTED = sys.argv[1:]
# A kubeconfig's commands are looked for beside it, and tools run elsewhere.
PROGRAM = os.path.abspath(PROGRAM)
TEMPORARY = tempfile.TemporaryDirectory()


def written(name, text, mode=0o600):
    """The path of a new file."""
    path = os.path.join(TEMPORARY.name, name)
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    os.chmod(path, mode)
    return path


def git():
    """A credential helper of Git: the token for a host, none for another, and one more call after a refusal."""
    configuration = written(
        "gitconfig",
        f'[credential "https://git.example"]\n\thelper = "!{PROGRAM} token web --format git --username x-access-token"\n',
    )
    environment = os.environ | {
        "GIT_CONFIG_GLOBAL": configuration, "GIT_CONFIG_NOSYSTEM": "1", "GIT_TERMINAL_PROMPT": "0", "HOME": TEMPORARY.name,
    }

    def call(action, text):
        return subprocess.run(
            ["git", "credential", action], input=text, env=environment, capture_output=True, text=True, check=False)

    filled = call("fill", "protocol=https\nhost=git.example\n\n")
    attributes = dict(line.split("=", 1) for line in filled.stdout.splitlines())
    assert attributes["username"] == "x-access-token", filled
    assert attributes["password"] == EXPECTED, filled
    assert call("approve", filled.stdout).returncode == 0
    assert call("reject", filled.stdout).returncode == 0
    # Without a refresh token there is nothing to renew, and the user stays logged in.
    again = call("fill", "protocol=https\nhost=git.example\n\n")
    assert f"password={EXPECTED}\n" in again.stdout, again
    other = call("fill", "protocol=https\nhost=other.example\n\n")
    assert other.returncode != 0 and EXPECTED not in other.stdout, other


def google():
    """Executable-sourced credentials: the JWT, and why there is none."""
    import google.auth.exceptions
    import google.auth.pluggable

    os.environ["GOOGLE_EXTERNAL_ACCOUNT_ALLOW_EXECUTABLES"] = "1"

    def credentials(tenant):
        return google.auth.pluggable.Credentials.from_info({
            "type": "external_account",
            "audience": "//iam.googleapis.com/projects/1/locations/global/workloadIdentityPools/p/providers/q",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": "https://sts.googleapis.com/v1/token",
            "credential_source": {
                "executable": {
                    "command": f"{PROGRAM} token {tenant} --format google-executable", "timeout_millis": 60000}},
        })

    assert credentials("web").retrieve_subject_token(None) == EXPECTED
    try:
        credentials("empty").retrieve_subject_token(None)
    except google.auth.exceptions.RefreshError as error:
        assert "no user is logged in" in str(error), error
    else:
        raise AssertionError("there is a token")


def aws():
    """credential_process: keys that a token is, as JSON."""
    import botocore.session

    keys = _aws_keys(f"{PROGRAM} token web --format aws-process", botocore.session)
    expected = json.loads(EXPECTED)
    assert keys.access_key == expected["AccessKeyId"], keys
    assert keys.secret_key == expected["SecretAccessKey"], keys
    assert keys.token == expected["SessionToken"], keys


def aws_sso():
    """credential_process: keys of a role, for a token of IAM Identity Center."""
    import botocore.session

    requests = []

    class Portal(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append((self.path, self.headers["x-amz-sso_bearer_token"], self.headers["Authorization"]))
            body = json.dumps({"roleCredentials": {
                "accessKeyId": "ASIA1", "secretAccessKey": "secret", "sessionToken": "session",
                "expiration": 4102444800000}}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *arguments):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Portal)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ["AWS_ENDPOINT_URL_SSO"] = f"http://127.0.0.1:{server.server_port}"
    keys = _aws_keys(
        f"{PROGRAM} token web --format aws-process --account 1234 --role Reader --region eu-central-1", botocore.session)
    assert (keys.access_key, keys.secret_key, keys.token) == ("ASIA1", "secret", "session"), keys
    assert requests == [("/federation/credentials?account_id=1234&role_name=Reader", EXPECTED, None)], requests
    server.shutdown()


def _aws_keys(command, session):
    os.environ["AWS_CONFIG_FILE"] = written("aws", f"[profile broker]\ncredential_process = {command}\n")
    os.environ["AWS_SHARED_CREDENTIALS_FILE"] = written("aws-credentials", "")
    return session.Session(profile="broker").get_credentials().get_frozen_credentials()


def kubernetes():
    """A user of a kubeconfig, of both versions of the exec API."""
    import kubernetes.config

    for version in ["v1", "v1beta1"]:
        path = written("kubeconfig", json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": "https://cluster.example"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {"exec": {
                "apiVersion": "client.authentication.k8s.io/" + version, "command": PROGRAM,
                "args": ["token", "web", "--format", "exec-credential"], "interactiveMode": "Never"}}}],
        }))
        client = kubernetes.config.new_client_from_config(path)
        assert client.configuration.auth_settings()["BearerToken"]["value"] == "Bearer " + EXPECTED


def docker():
    """A credential helper: what is asked for one registry, for another, and the list."""
    import docker.credentials

    written(
        "docker-credential-broker",
        f'#!/bin/sh\nexec "{PROGRAM}" token web --format docker --host registry.example "$@"\n', 0o700)
    os.environ["PATH"] = TEMPORARY.name + ":" + os.environ["PATH"]
    store = docker.credentials.Store("broker")
    found = store.get("https://registry.example/v2/")
    assert found == {"ServerURL": "https://registry.example/v2/", "Username": "oauth2", "Secret": EXPECTED}, found
    try:
        store.get("other.example")
    except docker.credentials.errors.CredentialsNotFound:
        pass
    else:
        raise AssertionError("another registry is given the token")
    assert store.list() == {}
    store.erase("registry.example")


{function.__name__: function for function in [git, google, aws, aws_sso, kubernetes, docker]}[TOOL]()
print("ok")
