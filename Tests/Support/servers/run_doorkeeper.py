"""Doorkeeper in a Rails application (doorkeeper/app.rb)."""

import json
import pathlib
import urllib.request

import child


class Server:
    answers = {"username": "ada", "password": "the password", "buttons": ["commit"]}
    protected = "/oauth/token/info"

    def __init__(self, base_url, port, directory, options):
        self.client_id, self.client_secret = "the client", options.get("secret", "s+cret/with=reserved%&:chars")
        self.issuer = base_url
        self.token_endpoint = base_url + "/oauth/token"
        self.authorization_endpoint = base_url + "/oauth/authorize"
        self.revocation_endpoint = base_url + "/oauth/revoke"
        self.port = port
        settings = {
            "issuer": self.issuer,
            "client_id": self.client_id,
            "client_secret": self.client_secret,
            "redirect_uri": options["redirect_uri"],
            "access_token_lifetime": options.get("access_token_lifetime", 3600),
        }
        program = pathlib.Path(__file__).with_name("doorkeeper") / "app.rb"
        self.process = child.start(["/usr/bin/ruby", str(program), str(port), str(directory), json.dumps(settings)])
        child.wait(self.process, port)

    def end_sessions(self):
        self.ask("end-sessions")

    def count_sessions(self):
        return int(self.ask("count-sessions"))

    def ask(self, path):
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{path}", timeout=20) as answer:
            return answer.read()

    def stop(self):
        child.stop(self.process)
