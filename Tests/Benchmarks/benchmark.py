"""Tests/Benchmarks/run, once everything is built: starts the servers, measures, reports, and cleans up."""

import argparse
import contextlib
import datetime
import os
import signal
import subprocess
import sys
import tempfile

import apps
import audit
import function_order
import measure
import report
import tls
from servers import Broker, Certificate, Failure, Floor, Nginx, Postgres, allow_many_descriptors

PARTS = [
    "counts", "rounds", "tls", "profile", "loops", "memory", "start", "keys", "events", "overload", "connections",
    "tenants", "apps", "audit", "soak", "order"]
# What is measured elsewhere than in measure.py.
MODULES = {"apps": apps, "audit": audit, "order": function_order, "tls": tls}
# What takes minutes.
LONG_PARTS = {"soak"}
# What writes a file of the repository: only where --only names it.
NAMED_PARTS = {"order"}


class Session:
    """What is measured, made when it is first asked for, and ended in the end."""

    def __init__(self, arguments, directory, stack):
        self.arguments, self.directory, self.stack = arguments, directory, stack
        self.tools = measure.Tools(arguments.programs, directory)
        self._kept = {}

    def say(self, text):
        print(f"{datetime.datetime.now():%H:%M:%S} {text}", file=sys.stderr, flush=True)

    def path(self, name):
        return os.path.join(self.directory, name)

    def _keep(self, name, make):
        if name not in self._kept:
            self._kept[name] = make()
        return self._kept[name]

    def run(self, server, **options):
        """Starts a server that ends with the session at the latest."""
        server.start(**options)
        self.stack.callback(server.stop)
        return server

    @property
    def database_server(self):
        return self._keep("postgres", lambda: self.run(Postgres(self.path("postgres"))))

    def database(self, name):
        return self.database_server.make_database(name)

    def broker(self, name, database=None, keys=measure.STORAGE_KEYS, program=None, **settings):
        """A broker with a store that holds so many keys. It is left stopped."""
        path = self.path(name.replace(" ", "-").replace(",", "").replace("/", "-"))
        broker = Broker(path, program or self.arguments.broker, database, name, settings)
        # Nothing is measured yet: all there is may help.
        broker.start(cores=range(os.cpu_count()), environment={"TOKEN_BROKER_EVENT_LOOPS": str(os.cpu_count())})
        try:
            broker.prepare()
            if keys > 1:
                self.tools.fill(broker, keys)
            # The number 0 has been stored a second time.
            broker.key, broker.etag, broker.content = broker.answer()
        finally:
            broker.stop()
        return broker

    @property
    def files(self):
        return self._keep("files", lambda: self.broker("broker, files"))

    @property
    def beside(self):
        """Brokers of other builds, on files."""
        return [
            self._keep(f"beside {program}", lambda: self.broker(f"broker, files, {program}", program=program))
            for program in self.arguments.beside]

    @property
    def small(self):
        """A store that is there already, and holds next to nothing."""
        return self._keep("small", lambda: self.broker("broker, one key", keys=1))

    @property
    def postgres(self):
        return self._keep("with postgres", lambda: self.broker("broker, PostgreSQL", self.database("broker")))

    @property
    def answer(self):
        """What the broker on files answers to the first storage key."""
        return self.files.key, self.files.etag, self.files.content

    @property
    def floor(self):
        return self._keep("floor", lambda: Floor(self.path("floor"), self.tools.floor, self.answer))

    @property
    def plain_floor(self):
        return self._keep(
            "plain floor", lambda: Floor(self.path("plain-floor"), self.tools.floor, self.answer, hashes=False))

    @property
    def nginx(self):
        return self._keep("nginx", lambda: Nginx(self.path("nginx"), self.answer))

    @property
    def certificate(self):
        return self._keep("certificate", lambda: Certificate(self.directory))

    @contextlib.contextmanager
    def running(self, *servers, **options):
        try:
            for server in servers:
                server.start(**options)
            yield servers
        finally:
            for server in servers:
                server.stop()


def read_arguments():
    parser = argparse.ArgumentParser(prog="Tests/Benchmarks/run")
    parser.add_argument("--programs", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--broker", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--beside", action="append", default=[], type=os.path.realpath)
    parser.add_argument("--counts", action="store_true")
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--publish", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=0.5)
    arguments = parser.parse_args()
    arguments.parts = [part for part in arguments.only.split(",") if part]
    if arguments.counts:
        arguments.parts = ["counts"]
    elif not arguments.parts:
        left_out = NAMED_PARTS if arguments.long else NAMED_PARTS | LONG_PARTS
        arguments.parts = [part for part in PARTS if part not in left_out]
    unknown = set(arguments.parts) - set(PARTS)
    if unknown:
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}")
    return arguments


def main():
    arguments = read_arguments()
    # Ended from outside, we end what we have started all the same.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, frame: sys.exit(128 + number))
    # A shell that starts us in the background has us ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    allow_many_descriptors()
    findings = report.Findings(arguments.parts if arguments.counts else PARTS, arguments.broker)
    with tempfile.TemporaryDirectory(prefix="token-broker-benchmark-") as directory, contextlib.ExitStack() as stack:
        # The database server's owner must find its own directory in there.
        os.chmod(directory, 0o711)
        session = Session(arguments, directory, stack)
        try:
            for part in PARTS:
                if part in arguments.parts:
                    session.say(part)
                    findings.begin(part)
                    getattr(MODULES.get(part, measure), f"measure_{part}")(session, findings)
                    findings.end(part)
        except (Failure, subprocess.SubprocessError) as failure:
            print(f"Tests/Benchmarks/run: {failure}", file=sys.stderr)
            return 2
        except KeyboardInterrupt:
            return 130
    thresholds = report.Thresholds.read()
    print(findings.text(thresholds))
    if arguments.publish:
        report.publish(findings, thresholds)
    missed = thresholds.missed(findings)
    if arguments.check:
        for line in missed:
            print(f"Tests/Benchmarks/run: {line}", file=sys.stderr)
        return 1 if missed else 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
