#!/usr/bin/env python3
"""A browser whose user logs in: browser.py ADDRESS REDIRECT_URI

Follows the address, logs in as alice at the development provider's page, says yes where the broker asks, and prints the
address that the app gets, which begins with the redirect URI.
"""

import html.parser
import sys
import urllib.parse

import requests


class Page(html.parser.HTMLParser):
    """The first form of a page, and its first link."""

    def __init__(self, text):
        super().__init__()
        self.action, self.fields, self.link = None, {}, None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "form" and self.action is None:
            self.action = attributes["action"]
        elif tag == "input" and attributes.get("name"):
            self.fields.setdefault(attributes["name"], attributes.get("value") or "")
        elif tag == "a" and self.link is None:
            self.link = attributes.get("href")


def visit(address, redirect_uri):
    """The address that the app gets."""
    session = requests.Session()
    session.headers["Accept"] = "text/html,application/xhtml+xml,*/*;q=0.8"
    form = None
    for _ in range(20):
        if address.startswith(redirect_uri):
            return address
        if form is None:
            answer = session.get(address, allow_redirects=False, timeout=20)
        else:
            answer = session.post(
                address, data=form, allow_redirects=False, timeout=20, headers={"Sec-Fetch-Site": "same-origin"}
            )
        form = None
        if answer.is_redirect:
            address = urllib.parse.urljoin(address, answer.headers["Location"])
            continue
        page = Page(answer.text)
        if page.action is not None:
            address = urllib.parse.urljoin(address, page.action)
            form = {"decision": "continue"}
            if "client_id" in page.fields:
                form = page.fields | {"user": "alice", "decision": "approve"}
        elif page.link is not None:
            address = page.link
        else:
            sys.exit(f"a page without a way on: {answer.status_code} {answer.text}")
    sys.exit("too many pages")


if __name__ == "__main__":
    print(visit(sys.argv[1], sys.argv[2]))
