"""The servers that are compared, started and ended by this module: the floor, nginx, and the broker on each store.

All listen on loopback, on ports that were free a moment before; all answer the same request with the same content. What
they write lies in one temporary directory. They end with this process, however that ends (PR_SET_PDEATHSIG).
"""

import contextlib
import ctypes
import http.client
import json
import os
import random
import resource
import signal
import socket
import ssl
import subprocess
import time

SERVER_CORE = 0
GENERATOR_CORE = 1
START_LIMIT_S = 60
STOP_LIMIT_S = 30
POSTGRES_PROGRAMS = "/usr/lib/postgresql/15/bin"
TENANT = "bench"
EXPIRES = "2036-01-01T00:00:00Z"
EXPIRES_SECONDS = 2082758400
# As long as a provider's signed token is.
TOKEN = ("eyJhbGciOiJFUzUxMiJ9." + "dGhlIHRva2VuIG9mIHRoZSBiZW5jaG1hcms" * 20)[:700]
DIGITS = 8

_libc = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1


class Failure(Exception):
    """The benchmark cannot go on; the text says why."""


def free_port():
    """A port on which no process listens, outside of the range from which the kernel gives clients theirs."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def spawn(arguments, cores=None, environment=None, goes_first=False, **options):
    """Starts a program in a session of its own (Ctrl-C is for us alone), on some cores only.

    One that goes first takes the processor from whatever else runs on its cores, where that is allowed.
    """

    def prepare():
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if cores is not None:
            os.sched_setaffinity(0, cores)
        if goes_first:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))

    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOKEN_BROKER_")}
    kept.update(environment or {})
    return subprocess.Popen(
        [str(argument) for argument in arguments], env=kept, preexec_fn=prepare, start_new_session=True, **options)


def stop(process, number=signal.SIGTERM):
    """Ends a process that `spawn` started, and waits for that."""
    if process is None or process.poll() is not None:
        return
    process.send_signal(number)
    try:
        process.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Certificate:
    """A certificate for 127.0.0.1 with an ECDSA P-256 key, which signs itself."""

    def __init__(self, directory):
        self.path, self.key_path = os.path.join(directory, "certificate.pem"), os.path.join(directory, "key.pem")
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30",
             "-subj", "/CN=benchmark", "-addext", "subjectAltName=IP:127.0.0.1", "-out", self.path, "-keyout",
             self.key_path],
            check=True, stderr=subprocess.DEVNULL)


class Server:
    """One that is compared. `name` is how tables call it, `process_id` whose CPU time counts."""

    name = ""
    etag = '"1"'
    key = ""
    # With which it speaks TLS; None without TLS.
    certificate = None

    def __init__(self, directory):
        self.directory = directory
        os.makedirs(directory, exist_ok=True)
        self.port = None
        self.process = None

    @property
    def process_id(self):
        return self.process.pid

    def command(self):
        """The program and its arguments, once `port` is known."""
        raise NotImplementedError

    def environment(self):
        return {}

    @contextlib.contextmanager
    def without_debug_information(self, path):
        """Until the end, at which it is stopped, its program is a copy at `path` without debug information.

        Callgrind's reader of it (Debian 12's) gives up at what Swift's compiler writes. The functions' names stay.
        """
        subprocess.run(["strip", "--strip-debug", "-o", path, self.program], check=True)
        original, self.program = self.program, path
        try:
            yield
        finally:
            self.program = original
            self.stop()

    def probe(self):
        """What is asked until it is answered: a path, and fields."""
        return self.target(0), {"Authorization": f"Bearer {self.key}"}

    def start(self, cores=(SERVER_CORE,), wrapper=(), environment=None):
        self.port = free_port()
        with open(os.path.join(self.directory, "log"), "ab") as log:
            self.process = spawn(
                [*wrapper, *self.command()], cores, self.environment() | (environment or {}), stdout=log, stderr=log)
        self.await_answer(*self.probe())

    def stop(self):
        stop(self.process)
        self.process = None

    def await_answer(self, path, headers):
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            if self.process.poll() is not None:
                raise Failure(f"{self.name} ended instead of starting:\n{self.last_words()}")
            try:
                status, _, _ = self.ask("GET", path, headers=headers)
                if status == 200:
                    return
            except OSError:
                pass
            if time.monotonic() > deadline:
                raise Failure(f"{self.name} does not answer")
            time.sleep(0.02)

    def last_words(self):
        with open(os.path.join(self.directory, "log"), encoding="utf-8", errors="replace") as file:
            return "".join(file.readlines()[-10:])

    def _connection(self):
        if self.certificate is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_LIMIT_S)
        context = ssl.create_default_context(cafile=self.certificate.path)
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=START_LIMIT_S, context=context)

    def ask(self, method, path, body=None, headers=None):
        """One request on a connection of its own: status, fields, content."""
        connection = self._connection()
        try:
            content = None if body is None else json.dumps(body)
            fields = dict(headers or {})
            if body is not None:
                fields["Content-Type"] = "application/json"
            connection.request(method, path, content, fields)
            response = connection.getresponse()
            return response.status, response.headers, response.read()
        finally:
            connection.close()

    def request(self, name, target=None, fields=()):
        """Writes a request to a file for the load generator and returns its path."""
        return self.write(f"{name}.request", self.head(target, self.key, fields))

    def head(self, target, key, fields=()):
        lines = [
            f"GET {target or self.target(0)} HTTP/1.1",
            f"Host: 127.0.0.1:{self.port}",
            "User-Agent: benchmark",
            "Accept: application/json",
            f"Authorization: Bearer {key}",
            *fields,
        ]
        return "\r\n".join(lines) + "\r\n\r\n"

    def write(self, name, text):
        path = os.path.join(self.directory, name)
        with open(path, "w", encoding="ascii") as file:
            file.write(text)
        return path

    @staticmethod
    def target(number=None):
        """The target for one storage key, or, without a number, the one whose number the generator fills in."""
        digits = "#" * DIGITS if number is None else f"{number:0{DIGITS}}"
        return f"/credentials?storage_key=user-{digits}"

    def memory_kib(self):
        with open(f"/proc/{self.process_id}/status", encoding="ascii") as file:
            for line in file:
                if line.startswith("VmRSS:"):
                    return int(line.split()[1])
        raise Failure(f"{self.name} has no memory")


class Floor(Server):
    """floor.c, with the answer of the broker."""

    def __init__(self, directory, program, answer, hashes=True):
        super().__init__(directory)
        self.name = "floor" if hashes else "floor, no hash"
        self.program, self.hashes = program, hashes
        self.key, self.etag, self.content = answer

    def command(self):
        body = os.path.join(self.directory, "body")
        with open(body, "wb") as file:
            file.write(self.content)
        command = [
            self.program, "--port", str(self.port), "--target", "/credentials?storage_key=user-", "--key", self.key, "--etag", self.etag,
            "--expires", str(EXPIRES_SECONDS), "--body", body]
        return command if self.hashes else command + ["--no-hash"]


class Nginx(Server):
    """Debian's nginx with one worker: the key is compared in the clear, nothing expires."""

    name = "nginx"

    def __init__(self, directory, answer, certificate=None):
        super().__init__(directory)
        self.key, self.etag, self.content = answer
        self.certificate = certificate

    def listener(self):
        address = f"listen 127.0.0.1:{self.port} backlog=4096"
        if self.certificate is None:
            return f"{address};"
        return (
            f"{address} ssl; ssl_protocols TLSv1.3; ssl_certificate {self.certificate.path}; "
            f"ssl_certificate_key {self.certificate.key_path};")

    def configure(self):
        content = self.content.decode("ascii")
        if "'" in content or "$" in content:
            raise Failure("the answer cannot stand in nginx's configuration")
        paths = "\n".join(
            f"{kind}_temp_path {self.directory}/{kind};" for kind in
            ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        # Without a master process: its worker is then the process that we start, and ends with us.
        return self.write("nginx.conf", f"""
daemon off; master_process off; worker_processes 1; pid {self.directory}/pid; error_log stderr;
events {{ worker_connections 16384; use epoll; multi_accept on; }}
http {{
  access_log off; server_tokens off; map_hash_bucket_size 256; keepalive_requests 1000000000; keepalive_timeout 3600s; tcp_nodelay on;
  {paths}
  map $http_authorization $may_read {{ default 0; "Bearer {self.key}" 1; }}
  map $http_if_none_match $is_held {{ default 0; '{self.etag}' 1; }}
  server {{
    {self.listener()}
    location = /credentials {{
      default_type application/json;
      add_header Cache-Control no-store; add_header ETag '{self.etag}'; add_header X-Request-ID $request_id;
      if ($may_read = 0) {{ return 401; }}
      if ($is_held = 1) {{ return 304; }}
      return 200 '{content}';
    }}
  }}
}}
""")

    def command(self):
        return ["/usr/sbin/nginx", "-e", "stderr", "-p", self.directory, "-c", self.configure()]


class Postgres:
    """A database server of our own, on a Unix-domain socket; nothing of it outlives the benchmark, so nothing is synced."""

    def __init__(self, directory):
        self.directory = directory
        os.makedirs(directory, exist_ok=True)
        os.chmod(directory, 0o755)
        self.process = None

    @staticmethod
    def as_owner(command):
        """PostgreSQL refuses to run as root."""
        if os.getuid() != 0:
            return command
        user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups", "--pdeathsig", "INT", "--"]
        return [*user, *command]

    def start(self):
        if os.getuid() == 0:
            subprocess.run(["chown", "postgres:postgres", self.directory], check=True)
        log = open(os.path.join(self.directory, "log"), "ab")
        data = os.path.join(self.directory, "data")
        subprocess.run(
            self.as_owner([
                f"{POSTGRES_PROGRAMS}/initdb", "-D", data, "-U", "postgres", "-N", "-E", "UTF8", "--locale=C", "-A",
                "trust"]),
            check=True, stdout=log, stderr=log, cwd=self.directory)
        settings = {
            "listen_addresses": "", "unix_socket_directories": self.directory, "fsync": "off",
            "synchronous_commit": "off", "full_page_writes": "off", "max_wal_size": "8GB", "shared_buffers": "512MB"}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        self.process = spawn(
            self.as_owner([f"{POSTGRES_PROGRAMS}/postgres", "-D", data, *options]), stdout=log, stderr=log,
            cwd=self.directory)
        log.close()
        ready = [f"{POSTGRES_PROGRAMS}/pg_isready", "-q", "-h", self.directory, "-U", "postgres"]
        deadline = time.monotonic() + START_LIMIT_S
        while subprocess.run(ready, check=False).returncode != 0:
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise Failure(f"PostgreSQL does not start; look at {self.directory}/log")
            time.sleep(0.05)

    def make_database(self, name):
        subprocess.run(
            [f"{POSTGRES_PROGRAMS}/createdb", "-h", self.directory, "-U", "postgres", name], check=True)
        return f"postgresql:///{name}?host={self.directory}&user=postgres"

    def cpu_ns(self):
        """The CPU time of each of its processes so far, by process."""
        times = {}
        children = f"/proc/{self.process.pid}/task/{self.process.pid}/children"
        with open(children, encoding="ascii") as file:
            processes = [str(self.process.pid), *file.read().split()]
        for process in processes:
            # One may end at any time.
            with contextlib.suppress(OSError), open(f"/proc/{process}/schedstat", encoding="ascii") as file:
                times[process] = int(file.read().split()[0])
        return times

    def stop(self):
        stop(self.process, signal.SIGINT)


class Broker(Server):
    """The broker as it is shipped, on its embedded store or on PostgreSQL."""

    def __init__(self, directory, program, database=None, name=None, settings=None):
        super().__init__(directory)
        self.name = name or ("broker, files" if database is None else "broker, PostgreSQL")
        self.program = program
        self.settings = {
            "TOKEN_BROKER_ADMIN_KEY": "the-admin-key-of-the-benchmarks-0",
            "TOKEN_BROKER_MASTER_KEYS": subprocess.run(
                [program, "keys", "generate"], check=True, capture_output=True, text=True).stdout.strip(),
            "TOKEN_BROKER_EVENT_LOOPS": "1",
            "TOKEN_BROKER_ALLOW_INSECURE_PROVIDERS": "true",
            # One key does what many callers would do.
            "TOKEN_BROKER_WRITE_RATE": "0",
            "TOKEN_BROKER_EVENT_STREAMS_PER_KEY": "0",
        }
        if database is None:
            self.settings["TOKEN_BROKER_DATA_DIR"] = os.path.join(directory, "data")
            os.makedirs(self.settings["TOKEN_BROKER_DATA_DIR"], mode=0o700, exist_ok=True)
        else:
            self.settings["TOKEN_BROKER_DATABASE_URL"] = database
        self.settings.update(settings or {})

    def use_tls(self, certificate):
        """Has it speak TLS from its next start on."""
        self.certificate = certificate
        self.settings.update(
            TOKEN_BROKER_TLS_CERTIFICATE=certificate.path, TOKEN_BROKER_TLS_KEY=certificate.key_path)

    def command(self):
        return [self.program]

    def environment(self):
        return self.settings | {"TOKEN_BROKER_LISTEN": f"127.0.0.1:{self.port}"}

    def probe(self):
        return "/readyz", {}

    def administer(self, method, path, body, tenant=None):
        headers = {"Authorization": f"Bearer {self.settings['TOKEN_BROKER_ADMIN_KEY']}"}
        if tenant:
            headers["X-Tenant"] = tenant
        status, fields, content = self.ask(method, path, body, headers)
        if status not in (200, 201):
            raise Failure(f"{method} {path}: {status} {content.decode()}")
        return fields, json.loads(content)

    def prepare(self):
        self.key = self.make_tenant(TENANT)

    def make_tenant(self, tenant):
        """A tenant, an API key, and the credentials of the first storage key, through the public API. Returns the key."""
        self.administer("PUT", f"/tenants/{tenant}", {"client_id": "benchmark", "scopes": ["r_usr"]})
        permissions = ["credentials:read", "credentials:write", "events"]
        _, made = self.administer(
            "POST", f"/tenants/{tenant}/api-keys", {"name": "benchmark", "permissions": permissions})
        self.administer("PUT", "/credentials", self.credentials(0), tenant)
        return made["api_key"]

    @staticmethod
    def credentials(number=None):
        digits = "#" * DIGITS if number is None else f"{number:0{DIGITS}}"
        return {
            "storage_key": f"user-{digits}", "refresh_token": "r" * 64,
            "credentials": {
                "client_id": "benchmark", "granted_scopes": ["r_usr"], "user_id": "42", "expires": EXPIRES,
                "token": TOKEN}}

    def storing_request(self, tenant=TENANT):
        """A request that stores credentials under the storage key whose number the generator fills in."""
        body = json.dumps(self.credentials())
        return self.write("store.request", (
            f"PUT /credentials HTTP/1.1\r\nHost: 127.0.0.1:{self.port}\r\nAuthorization: Bearer "
            f"{self.settings['TOKEN_BROKER_ADMIN_KEY']}\r\nX-Tenant: {tenant}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n{body}"))

    def answer(self):
        """What the others are to answer, too: the key, the entity tag and the content of the first storage key."""
        status, fields, content = self.ask("GET", self.target(0), headers={"Authorization": f"Bearer {self.key}"})
        if status != 200 or TOKEN.encode() not in content:
            raise Failure(f"the broker answers {status}")
        return self.key, fields["ETag"], content


def allow_many_descriptors():
    """As many as may be had: servers inherit it."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
