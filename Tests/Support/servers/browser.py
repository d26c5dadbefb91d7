"""A browser without scripts: cookies, redirects, and the forms of a login."""

import html.parser
import http.client
import urllib.parse

MOST_STEPS = 12


class Failure(Exception):
    """What a test is told. Never holds a password or a token."""


class Forms(html.parser.HTMLParser):
    """The forms of a page: their address, method, fields and buttons."""

    def __init__(self, page):
        super().__init__()
        self.forms = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        if tag == "form":
            self.forms.append(
                {
                    "action": values.get("action") or "",
                    "method": (values.get("method") or "get").upper(),
                    "fields": {},
                    "buttons": {},
                }
            )
        elif tag in ("input", "button") and self.forms and values.get("name"):
            kind = (values.get("type") or ("submit" if tag == "button" else "text")).lower()
            form = self.forms[-1]
            if kind in ("submit", "image"):
                form["buttons"].setdefault(values["name"], values.get("value") or "")
            elif kind not in ("checkbox", "radio") or "checked" in values:
                form["fields"][values["name"]] = values.get("value") or ""


class Browser:
    """Requests to one origin with its cookies."""

    def __init__(self, base_url):
        self.base_url = base_url
        self.authority = urllib.parse.urlsplit(base_url).netloc
        self.cookies = {}

    def request(self, method, url, form=None):
        target = urllib.parse.urlsplit(urllib.parse.urljoin(self.base_url + "/", url))
        if target.netloc != self.authority:
            raise Failure(f"asked for a page of {target.netloc}, not of the server")
        headers = {"Accept": "text/html", "Accept-Language": "en"}
        if self.cookies:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        body = None
        if form is not None:
            body = urllib.parse.urlencode(form)
            headers["Content-Type"] = "application/x-www-form-urlencoded"
            headers["Origin"] = self.base_url
            headers["Referer"] = url
        connection = http.client.HTTPConnection(self.authority, timeout=20)
        path = (target.path or "/") + (f"?{target.query}" if target.query else "")
        connection.request(method, path, body=body, headers=headers)
        answer = connection.getresponse()
        for name, value in answer.getheaders():
            if name.lower() == "set-cookie":
                pair = value.split(";")[0]
                key, _, content = pair.partition("=")
                self.cookies[key.strip()] = content.strip()
        page = answer.read().decode("utf-8", "replace")
        connection.close()
        return answer.status, answer.getheader("Location"), page

    def log_in(self, url, answers, redirect_uri):
        """Opens an authorization URL, and fills in each form that comes, until the server redirects to the client.

        `answers` has the values of fields by their names, and under the key `buttons` the names of those to press.
        """
        method, form = "GET", None
        for _ in range(MOST_STEPS):
            status, location, page = self.request(method, url, form)
            if location is not None and 300 <= status < 400:
                url = urllib.parse.urljoin(url, location)
                if url.startswith(redirect_uri):
                    return url
                method, form = "GET", None
                continue
            found = self.choose(Forms(page).forms, answers)
            if status >= 400 or found is None:
                raise Failure(f"the server shows no form that can be filled in, with status {status}: {self.text(page)}")
            fields = dict(found["fields"])
            fields.update({name: value for name, value in answers.items() if name in fields})
            for name in answers.get("buttons", []):
                if name in found["buttons"]:
                    fields[name] = found["buttons"][name]
            url = urllib.parse.urljoin(url, found["action"]) if found["action"] not in ("", "#") else url
            method, form = found["method"], fields
            if method == "GET":
                url, form = url.split("?")[0] + "?" + urllib.parse.urlencode(fields), None
        raise Failure("the login does not come to its end")

    @staticmethod
    def choose(forms, answers):
        def knows(form):
            return any(name in form["fields"] for name in answers) or any(
                name in form["buttons"] for name in answers.get("buttons", [])
            )

        return next((form for form in forms if knows(form)), forms[0] if forms else None)

    @staticmethod
    def text(page):
        class Text(html.parser.HTMLParser):
            def __init__(self):
                super().__init__()
                self.words, self.hidden = [], 0

            def handle_starttag(self, tag, attributes):
                self.hidden += tag in ("script", "style")

            def handle_endtag(self, tag):
                self.hidden -= tag in ("script", "style")

            def handle_data(self, data):
                if not self.hidden:
                    self.words += data.split()

        text = Text()
        text.feed(page)
        return " ".join(text.words)[:300]
