"""A client of token-broker for Python 3.9 or later, with the standard library only. See README.md beside it."""
import http.client, json, random, threading, time, typing
import urllib.error, urllib.parse, urllib.request
LOG_IN = "level_not_available missing_token_container invalid_token_request unknown_account unauthenticated".split()

class BrokerError(Exception):
    """Why there is no token. `status` is 0 where no answer came; `code` and `detail` are the broker's."""
    def __init__(self, status, headers, body, detail=None):
        try:
            problem = json.loads(body)
            self.code = problem["code"]
        except (ValueError, KeyError, TypeError):
            problem, self.code = {}, "" if status else "network_error"
        after = headers.get("Retry-After") or ""
        self.status, self.detail = status, detail or problem.get("detail") or f"The broker answered {status}."
        self.error_code, self.request_id = problem.get("error_code"), headers.get("X-Request-ID")
        self.retry_after, self.must_log_in = int(after) if after.isdigit() else None, self.code in LOG_IN
        self.reconnect_uri = (problem.get("session") or {}).get("reconnect_uri")  # where the user can log in again
        super().__init__(f"{self.status} {self.code}: {self.detail}")

class Credentials:
    """A token and what belongs to it. `body` is the whole answer of `GET /credentials`."""
    def __init__(self, etag, body, asked):
        self.etag, self.body, self._asked, self.checked = etag, body, asked, asked
        self.token, self.token_type, self.level = body["token"], body["token_type"], body["level"]

    def seconds_left(self):  # counted from the moment before the token was asked for
        lifetime = self.body["expires_in"]
        return float("inf") if lifetime is None else lifetime - age(self._asked)
Event = typing.NamedTuple("Event", [("id", str), ("name", str), ("data", dict)])
def age(then):  # The one clock may stand still while the machine sleeps, and the other may be set back.
    return max(time.monotonic() - then[0], time.time() - then[1])
class _NoRedirect(urllib.request.HTTPRedirectHandler):
    redirect_request = lambda *_: None  # The API key is for the broker only.

class TokenBroker:
    """Threads may share one. `timeout`: the most seconds that a call takes. `max_age`: the seconds for which a token is
    given from memory before the broker is asked whether it is still current. `capacity`: the most tokens in memory."""
    def __init__(self, base_url, api_key, *, timeout=30, max_age=30, capacity=10_000):
        self._base, self._key, self._timeout = base_url.rstrip("/"), api_key, timeout
        self._max_age, self._capacity = max_age, capacity
        self._lock, self._cache = threading.Lock(), {}
        self._opener = urllib.request.build_opener(_NoRedirect)

    def token(self, storage_key="default", *, tenant=None, level="user", min_ttl=60, refused=None, sub_status="11003"):
        """Credentials that are valid for min_ttl seconds. `refused`: those that the provider's API answered with 401.
        All callers that name the same ones cause one renewal. `sub_status`: the API's, where it says one (TIDAL)."""
        key = (tenant, storage_key, level)
        with self._lock:
            known = self._cache.get(key)
            if known and refused and refused.etag == known.etag:
                known, _ = None, self._cache.pop(key)
            if known and age(known.checked) < self._max_age and known.seconds_left() > max(0, min_ttl):
                return known
        return self._fetch(key, min_ttl, known, refused, sub_status)

    def _fetch(self, key, min_ttl, known, refused, sub_status):
        query = {"storage_key": key[1], "level": key[2], "min_ttl": min_ttl}
        query |= {"api_error_sub_status": sub_status} if refused else {}
        compared = refused or (known if known and known.seconds_left() > 0 else None)
        spare = None if refused else compared  # It is given while the broker does not answer.
        end, pause = time.monotonic() + (min(5, self._timeout) if spare else self._timeout), 0.2
        while True:
            left, asked = max(1, end - time.monotonic()), (time.monotonic(), time.time())
            headers = {"Prefer": f"wait={int(left)}"} | ({"If-None-Match": compared.etag} if compared else {})
            try:
                with self._open("/credentials", key[0], headers, left + 2, query) as answer:
                    body = answer.read(1 << 20)
                if answer.status == 304 and compared and compared.seconds_left() > 0:
                    compared.checked = asked
                    return compared
                if answer.status == 200:
                    found = Credentials(answer.headers["ETag"], json.loads(body), asked)
                    with self._lock:
                        if len(self._cache) >= self._capacity:
                            del self._cache[next(iter(self._cache))]
                        self._cache[key] = found
                    return found
                failure = BrokerError(answer.status, answer.headers, body)
                wait = failure.retry_after or max(1, pause)
                if answer.status not in (429, 503) and (answer.status not in (502, 504) or failure.code):
                    self.forget(key[1], key[0])
                    raise failure
            except (OSError, http.client.HTTPException, ValueError) as error:
                failure, wait = BrokerError(0, {}, b"", f"The broker does not answer: {error}"), pause
            if spare and spare.seconds_left() > 0:
                return spare
            wait, pause = wait * (1 + random.random() / 10), min(2 * pause, 5)
            if time.monotonic() + wait > end:
                raise failure
            time.sleep(wait)

    def forget(self, storage_key, tenant=None, except_version=None):
        with self._lock:
            for key in [(name, storage_key, level) for name in (None, tenant) for level in ("basic", "client", "user")]:
                if key in self._cache and self._cache[key].etag != f'"{except_version}"':
                    del self._cache[key]

    def events(self, *, tenant=None, last_event_id=""):
        """Yields events without end, and connects again after a fault. Tokens that an event replaces are forgotten."""
        pause = retry = 1
        while True:  # The broker sends a comment after 15 seconds without an event.
            try:
                with self._open("/events", tenant, {"Last-Event-ID": last_event_id}, 45) as answer:
                    fields = {}
                    if answer.status != 200:
                        failure = BrokerError(answer.status, answer.headers, answer.read(1 << 20))
                        pause = failure.retry_after or pause
                        if answer.status != 429 and answer.status < 500:
                            raise failure
                    while answer.status == 200 and (line := answer.readline(1 << 20).decode()):
                        name, _, value = line.strip("\r\n").partition(": ")
                        if name or value:
                            fields[name] = value
                            continue
                        next_id, retry = fields.get("id", last_event_id), int(fields.get("retry", retry * 1000)) / 1000
                        if "data" in fields:
                            yield self._hear(Event(next_id, fields.get("event"), json.loads(fields["data"])))
                        fields, last_event_id, pause = {}, next_id, retry
            except (OSError, http.client.HTTPException, ValueError):
                pass  # It connects again.
            time.sleep(pause * (1 + random.random() / 10))
            pause = min(2 * pause, 30)

    def _hear(self, event):
        if event.name == "stream.reset":
            self._cache.clear()
        if event.name in ("credentials.updated", "credentials.deauthorized"):
            is_update = event.name == "credentials.updated"
            self.forget(event.data["storage_key"], event.data["tenant"], event.data["version"] if is_update else None)
        return event

    def _open(self, path, tenant, headers, timeout, query={}):
        headers = {"Authorization": f"Bearer {self._key}"} | headers | ({"X-Tenant": tenant} if tenant else {})
        address = self._base + path + ("?" + urllib.parse.urlencode(query) if query else "")
        try:
            return self._opener.open(urllib.request.Request(address, headers=headers), timeout=timeout)
        except urllib.error.HTTPError as answer:
            return answer
