"""What is measured, one function for each figure or group of figures. Servers come from servers.py."""

import concurrent.futures
import contextlib
import json
import math
import os
import re
import signal
import statistics
import struct
import subprocess
import time

from servers import GENERATOR_CORE, SERVER_CORE, Failure, free_port, spawn, stop

# Storage keys that every broker of the comparison holds.
STORAGE_KEYS = 1000
# The longest load there is: ten million requests, a million storage keys.
LOAD_LIMIT_S = 3600
# Storage keys that are stored in one go.
FILL_PORTION = 20000


class Tools:
    """The compiled C programs, and the directory in which everything is kept."""

    def __init__(self, programs, directory):
        self.directory = directory
        for name in ("floor", "load", "secure_load", "refresh", "crowd", "start", "brake"):
            setattr(self, name, os.path.join(programs, name))
        self.allocations = os.path.join(programs, "allocations.so")

    def begin_load(self, server, request, *options, goes_first=False):
        """Starts the load generator on its core against a server."""
        program = self.load if server.certificate is None else self.secure_load
        command = [
            program, "--port", server.port, "--requests-from", request, "--cpu-of", server.process_id, *options]
        return spawn(command, (GENERATOR_CORE,), goes_first=goes_first, stdout=subprocess.PIPE, text=True)

    def run_load(self, server, request, *options, may_fail=False):
        """Runs the load generator, and returns what it has counted."""
        return self.end_load(server, self.begin_load(server, request, *options), may_fail)

    def end_load(self, server, process, may_fail=False):
        try:
            output, _ = process.communicate(timeout=LOAD_LIMIT_S)
        finally:
            stop(process, signal.SIGKILL)
        if process.returncode != 0:
            raise Failure(f"load against {server.name} failed: {' '.join(process.args)}\n{server.last_words()}")
        result = json.loads(output)
        if not may_fail and (result["other"] or result["errors"] or result["unavailable"]):
            raise Failure(f"{server.name} did not answer as it should: {output}")
        return result

    def fill(self, broker, numbers, connections=32):
        """Stores credentials under so many storage keys through the API.

        In portions: one of which something was refused, with the word to come again, is stored again.
        """
        request = broker.storing_request()
        for first in range(0, numbers, FILL_PORTION):
            self._until_none_is_refused(broker, request, first, min(FILL_PORTION, numbers - first), connections)

    def read_once(self, server, request, numbers, connections=64):
        """Reads every storage key once, so that it is in memory.

        What is not in memory yet may be refused by a server that is slow (under callgrind, or on a busy machine), with
        the word to come again: then all are read again, of which most are in memory by then.
        """
        self._until_none_is_refused(server, request, 0, numbers, connections)

    def _until_none_is_refused(self, server, request, first, count, connections):
        """Sends a request for each of so many numbers, and all of them again where one was refused."""
        end = time.monotonic() + LOAD_LIMIT_S
        while True:
            result = self.run_load(
                server, request, "--first", first, "--numbers", count, "--sequential", "--count", count, "--connections",
                connections, may_fail=True)
            if result["other"] or result["errors"] or time.monotonic() > end:
                raise Failure(f"{server.name} did not answer as it should: {result}")
            if not result["unavailable"]:
                return


# --- Interleaved windows --------------------------------------------------------------------------------------------


class Scenario:
    """One way to send requests: a name, options of the generator, and what distinguishes the requests."""

    def __init__(self, name, *options, rotates=False, closes=False, held=False):
        self.name, self.options = name, [*options]
        self.rotates, self.closes, self.held = rotates, closes, held
        if rotates and "--numbers" not in options:
            self.options += ["--numbers", STORAGE_KEYS]

    def request(self, server):
        fields = []
        if self.closes:
            fields.append("Connection: close")
        if self.held:
            fields.append(f"If-None-Match: {server.etag}")
        target = server.target() if self.rotates else None
        return server.request(re.sub(r"\W+", "-", self.name), target, fields=fields)


SCENARIOS = [
    Scenario("64 connections", "--connections", 64),
    Scenario("512 connections", "--connections", 512),
    Scenario("64 connections, changing keys", "--connections", 64, rotates=True),
    Scenario("16 pipelined", "--connections", 64, "--pipeline", 16),
    Scenario("16 pipelined, changing keys", "--connections", 64, "--pipeline", 16, rotates=True),
    Scenario("a connection each", "--connections", 64, "--reconnect", closes=True),
    Scenario("304", "--connections", 64, held=True),
    Scenario("10,000/s", "--connections", 64, "--rate", 10000),
    Scenario("40,000/s", "--connections", 64, "--rate", 40000),
]


def rounds(tools, servers, scenarios, count, seconds, say):
    """Windows of every scenario against every server, again and again, so that what disturbs one disturbs all."""
    results = {scenario.name: {server.name: [] for server in servers} for scenario in scenarios}
    for server in servers:
        # What speaks TLS is asked for one storage key only.
        if server.certificate is None:
            tools.read_once(server, server.request("warm", server.target()), STORAGE_KEYS)
    for number in range(count):
        for scenario in scenarios:
            # No server always goes first.
            shift = number % len(servers)
            for server in servers[shift:] + servers[:shift]:
                window = tools.run_load(
                    server, scenario.request(server), *scenario.options, "--seconds", seconds, "--warm-up", 0.15)
                results[scenario.name][server.name].append(window)
        say(f"round {number + 1} of {count}")
    return results


def ratio(results, scenario, upper, lower, figure):
    """The median of the ratios within rounds."""
    pairs = zip(results[scenario][upper], results[scenario][lower])
    return statistics.median(one[figure] / other[figure] for one, other in pairs if other[figure] > 0)


def median(results, scenario, server, figure):
    return statistics.median(window[figure] for window in results[scenario][server])


# --- Counts ---------------------------------------------------------------------------------------------------------

# Requests whose instructions are counted: many enough for what is done once a second to hardly count.
COUNTED = 20000


def system_calls(tools, server, request, connections=64, requests=20000):
    """System calls for each request, by name: the difference of a long and a short run, so that connecting drops out."""

    def count(number):
        path = os.path.join(tools.directory, "strace")
        tracer = spawn(
            ["strace", "-f", "-c", "-o", path, "-p", server.process_id], stderr=subprocess.PIPE, text=True)
        try:
            # It says so for each thread; the first is enough, the others are attached by then.
            line = tracer.stderr.readline()
            if "attached" not in line:
                raise Failure(f"strace: {line}")
            time.sleep(0.3)
            tools.run_load(server, request, "--connections", connections, "--count", number)
        finally:
            stop(tracer, signal.SIGINT)
            tracer.stderr.close()
        calls = {}
        with open(path, encoding="ascii") as file:
            for line in file:
                match = re.match(r"\s*[\d.]+\s+[\d.]+\s+\d+\s+(\d+)\s+(?:\d+\s+)?(\w+)$", line)
                if match and match[2] != "total":
                    calls[match[2]] = int(match[1])
        return calls

    few, many = count(connections), count(connections + requests)
    each = {name: (calls - few.get(name, 0)) / requests for name, calls in many.items()}
    return {name: value for name, value in sorted(each.items(), key=lambda item: -item[1]) if value > 0.0005}


def allocations(tools, server, target, connections=64, requests=20000, options=()):
    """Heap allocations, and bytes that they ask for, of each request."""
    path = os.path.join(tools.directory, "allocations")
    if os.path.exists(path):
        os.remove(path)
    server.start(environment={"LD_PRELOAD": tools.allocations, "ALLOCATIONS_FILE": path})
    try:
        request = server.request("allocations", target)

        def count(number):
            with open(path, "rb") as file:
                before = struct.unpack("QQ", file.read(16))
            tools.run_load(server, request, "--connections", connections, "--count", number, *options)
            with open(path, "rb") as file:
                after = struct.unpack("QQ", file.read(16))
            return [late - early for early, late in zip(before, after)]

        # What is made on first use has been made after this.
        tools.read_once(server, request, STORAGE_KEYS)
        few, many = count(connections), count(connections + requests)
        return [(late - early) / requests for early, late in zip(few, many)]
    finally:
        server.stop()


def instructions(tools, server, target, options=(), connections=1):
    """User-space instructions of each request, of all threads, by callgrind. Returns the file with the profile, too."""
    path = os.path.join(tools.directory, "callgrind")
    for name in os.listdir(tools.directory):
        if name.startswith("callgrind"):
            os.remove(os.path.join(tools.directory, name))
    with server.without_debug_information(f"{path}-program"):
        # Counting begins by hand: the start is not of interest, and runs faster so.
        server.start(wrapper=[
            "valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={path}", "--error-limit=no"])
        request = server.request("instructions", target)

        def command(*words):
            subprocess.run(
                ["vgdb", f"--pid={server.process_id}", *words], check=True, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL)

        def count(number, dump):
            command("zero")
            tools.run_load(server, request, "--connections", connections, "--count", number, *options)
            command("dump")
            with open(f"{path}.{dump}", encoding="utf-8", errors="replace") as file:
                for line in file:
                    if line.startswith("totals:"):
                        return int(line.split()[1])
            raise Failure("callgrind's totals are missing")

        # Few at a time: a server that is as slow as this one refuses what has to wait.
        tools.read_once(server, request, STORAGE_KEYS, connections=4)
        command("instrumentation", "on")
        # The first run under instrumentation makes the code that is run then.
        count(connections + 100, 1)
        few = count(connections, 2)
        return (count(connections + COUNTED, 3) - few) / COUNTED, f"{path}.3"


def profile(path, requests, lines=40):
    """What the instructions of a request are spent in: the functions that take most, by their names in Swift."""
    text = subprocess.run(
        ["callgrind_annotate", "--threshold=100", path], check=True, capture_output=True, text=True).stdout
    found = []
    for line in text.splitlines():
        match = re.match(r"\s*([\d,]+)\s+\(\s*[\d.]+%\)\s+(?:\S*:)?(.+?)(?: \[[^\]]*\])?$", line)
        if match and "PROGRAM TOTALS" not in line:
            found.append((int(match[1].replace(",", "")) / requests, match[2]))
    names = demangled([name for _, name in found[:lines]])
    return [[name, count] for (count, _), name in zip(found, names)]


def demangled(names):
    return subprocess.run(
        ["swift", "demangle", "--simplified"], input="\n".join(names), check=True, capture_output=True,
        text=True).stdout.splitlines()


def measure_counts(session, findings):
    tools, broker = session.tools, session.files
    with session.running(broker):
        calls = system_calls(tools, broker, broker.request("same"))
    findings.data("system calls", calls)
    findings.figure("system_calls", sum(calls.values()))
    findings.table(
        "System calls of a warm request, 64 connections", ["call", "times"],
        [[name, times] for name, times in calls.items()])
    rows = []
    for name, target, options in (
            ("same", broker.target(0), ()), ("changing", broker.target(), ("--numbers", STORAGE_KEYS))):
        number, size = allocations(tools, broker, target, options=options)
        findings.figure(f"allocations_{name}", number)
        findings.data(f"allocated bytes, {name}", size)
        rows.append([f"{name} storage key", number, size])
    findings.table("Heap allocations of a warm request", ["requests for", "allocations", "bytes"], rows)

    rotation = ("--numbers", STORAGE_KEYS)
    rows, spent = {}, {}
    for name, server, target, options in (
            ("floor, without SHA-256", session.plain_floor, broker.target(0), ()),
            ("floor", session.floor, broker.target(0), ()),
            ("broker, same head", broker, broker.target(0), ()),
            ("broker, changing storage key", broker, broker.target(), rotation)):
        # With many connections a turn of the loop serves many, and what a turn costs is shared.
        rows[name] = []
        for connections in (64, 1):
            count, path = instructions(tools, server, target, options, connections)
            rows[name].append(count)
            spent[name] = profile(path, COUNTED + connections)
    findings.data("instructions", spent)
    findings.table(
        "User-space instructions of a warm request",
        ["server", "64 connections", "1 connection"], [[name, *counts] for name, counts in rows.items()])
    for name in ("broker, same head", "broker, changing storage key"):
        findings.table(
            f"What they are spent in, 1 connection: {name}", ["function", "instructions"],
            [[function[:90], count] for function, count in spent[name][:15]])


# The figures that thresholds.json names, and how they are made of the windows.
OVER_FLOOR = {
    "64 connections": "cpu_over_floor_64",
    "512 connections": "cpu_over_floor_512",
    "64 connections, changing keys": "cpu_over_floor_changing",
    "16 pipelined": "cpu_over_floor_pipelined",
    "16 pipelined, changing keys": "cpu_over_floor_pipelined_changing",
    "a connection each": "cpu_over_floor_reconnect",
}
OVER_NGINX = {
    "64 connections": "nginx_over_cpu_64",
    "512 connections": "nginx_over_cpu_512",
    "a connection each": "nginx_over_cpu_reconnect",
}


def measure_rounds(session, findings):
    beside = session.beside
    servers = [session.floor, session.nginx, session.files, session.postgres, *beside]
    with session.running(*servers):
        results = rounds(
            session.tools, servers, SCENARIOS, session.arguments.rounds, session.arguments.seconds, session.say)
    findings.data("rounds", results)
    # A warm request does not touch the store, so that the stores need not be told apart but for this.
    other = session.postgres.name
    findings.figure("cpu_over_floor_postgres", ratio(results, "64 connections", other, "floor", "server_cpu_us"))
    broker = session.files.name
    for scenario, name in OVER_FLOOR.items():
        findings.figure(name, ratio(results, scenario, broker, "floor", "server_cpu_us"))
    for scenario, name in OVER_NGINX.items():
        findings.figure(name, ratio(results, scenario, "nginx", broker, "server_cpu_us"))
    for quantile in ("p50", "p99"):
        findings.figure(f"{quantile}_over_nginx", ratio(results, "40,000/s", broker, "nginx", f"{quantile}_us"))
    windows = zip(results["304"][broker], results["64 connections"][broker])
    findings.figure(
        "not_modified_over_ok", statistics.median(one["server_cpu_us"] / other["server_cpu_us"] for one, other in windows))
    for scenario in SCENARIOS:
        rows = []
        for server in servers:
            figures = (
                "server_cpu_us", "server_busy", "generator_busy", "per_second", "p50_us", "p99_us", "p999_us")
            values = [median(results, scenario.name, server.name, figure) for figure in figures]
            rows.append([
                server.name, *values, ratio(results, scenario.name, server.name, "floor", "server_cpu_us"),
                ratio(results, scenario.name, "nginx", server.name, "server_cpu_us")])
        findings.table(
            f"{scenario.name} (medians of {session.arguments.rounds} windows)",
            ["server", "CPU µs", "busy", "generator", "per second", "p50 µs", "p99 µs", "p99.9 µs", "× floor's CPU",
             "nginx's CPU ×"], rows)
    for other in beside:
        findings.table(
            f"CPU time, this program over {other.name}", ["scenario", "×"],
            [[scenario.name, ratio(results, scenario.name, broker, other.name, "server_cpu_us")]
             for scenario in SCENARIOS])


# --- What dominates -------------------------------------------------------------------------------------------------


def measure_profile(session, findings):
    """Where the CPU time goes, by samples: how much of it in the kernel, and in which functions."""
    tools, rows = session.tools, []
    wanted = [scenario for scenario in SCENARIOS if "/s" not in scenario.name and scenario.name != "304"]
    for server in (session.floor, session.nginx, session.files):
        with session.running(server):
            tools.read_once(server, server.request("warm", server.target()), STORAGE_KEYS)
            for scenario in wanted:
                shares, functions = sample(tools, server, scenario)
                kernel = shares.pop("[kernel.kallsyms]", 0)
                rows.append([f"{scenario.name}: {server.name}", kernel, *_largest(shares, 1)[0]])
                if server is not session.files:
                    continue
                findings.data(f"samples, {scenario.name}", functions)
                if scenario.name in ("64 connections", "16 pipelined, changing keys"):
                    findings.table(
                        f"Where the broker's CPU time goes, {scenario.name} (%)", ["function", "of", "%"],
                        functions[:12])
    findings.table(
        "CPU time in the kernel, and in what takes most beside it (%)", ["", "kernel", "then", "%"], rows)


def sample(tools, server, scenario):
    """The shares of program and libraries, and those of functions, largest first."""
    path = os.path.join(tools.directory, "samples")
    load = tools.begin_load(server, scenario.request(server), *scenario.options, "--seconds", 3)
    subprocess.run(
        ["perf", "record", "-q", "-N", "-e", "cpu-clock", "-F", "2000", "-p", str(server.process_id), "-o", path,
         "sleep", "2"], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    tools.end_load(server, load)
    text = subprocess.run(
        ["perf", "report", "-i", path, "--stdio", "-t", "|", "--sort", "dso,symbol"], check=True, capture_output=True,
        text=True).stdout
    shares, functions = {}, []
    for line in text.splitlines():
        parts = [part.strip() for part in line.split("|")]
        if line.startswith("#") or len(parts) < 3 or not parts[0].endswith("%"):
            continue
        share, place = float(parts[0][:-1]), parts[1]
        shares[place] = shares.get(place, 0) + share
        functions.append([re.sub(r"^\[[.k]\] ", "", parts[2]), place.strip("[]"), share])
    names = demangled([function[0] for function in functions[:60]])
    return shares, [[name[:80], *function[1:]] for name, function in zip(names, functions)]


def _largest(shares, count):
    return sorted(shares.items(), key=lambda item: -item[1])[:count] or [("", 0)]


# --- Two loops ------------------------------------------------------------------------------------------------------


def measure_loops(session, findings):
    """What a second loop brings, from CPU time: with two processors, one of them the generator's, throughput cannot tell.

    Two loops on two processors do as much as one loop, times two, times what a request costs with one loop over what it
    costs with two. Whatever they share and fight for shows as CPU time of each request.
    """
    both = {SERVER_CORE, GENERATOR_CORE}
    broker = session.files
    ratios = []
    for number in range(session.arguments.rounds):
        costs = []
        for loops in (1, 2) if number % 2 == 0 else (2, 1):
            with session.running(broker, cores=both, environment={"TOKEN_BROKER_EVENT_LOOPS": str(loops)}):
                window = session.tools.run_load(
                    broker, broker.request("loops"), "--connections", 64, "--seconds", session.arguments.seconds)
            costs.append((loops, window["server_cpu_us"]))
        one, two = (cost for _, cost in sorted(costs))
        ratios.append(2 * one / two)
    findings.figure("two_loops_over_one", statistics.median(ratios))


# --- Memory and start -----------------------------------------------------------------------------------------------

IDLE_CONNECTIONS = 10000


class Companion:
    """A program that runs while something else is measured, from when it says that it is ready."""

    def __init__(self, command, core):
        self.command, self.core = command, core
        self.process = self.result = None

    def __enter__(self):
        self.process = spawn(self.command, (self.core,), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "ready\n":
            stop(self.process, signal.SIGKILL)
            raise Failure(f"{self.command[0]} did not get ready")
        return self

    def __exit__(self, *_):
        try:
            output, _ = self.process.communicate(timeout=60)
            self.result = json.loads(output) if output else None
        finally:
            stop(self.process, signal.SIGKILL)


def crowd(tools, server, behaviour, connections, request=None, tick=100):
    """Connections that crowd.c holds."""
    command = [
        tools.crowd, "--port", server.port, "--connections", connections, "--behaviour", behaviour, "--tick", tick]
    return Companion(command + (["--request-from", request] if request else []), GENERATOR_CORE)


def brake(tools, percent):
    """Leaves the server that part of its processor that brake.c does not take."""
    return Companion([tools.brake, percent], SERVER_CORE)


def measure_memory(session, findings):
    rows = []
    # One more than there are idle connections asks for its credentials in the end.
    limits = {"TOKEN_BROKER_MAX_CONNECTIONS": str(IDLE_CONNECTIONS + 100)}
    for server in (session.small, session.files, session.postgres, session.nginx, session.floor):
        with session.running(server, environment=limits):
            session.tools.run_load(server, server.request("one"), "--count", 1, "--connections", 1)
            at_start = server.memory_kib()
            with crowd(session.tools, server, "idle", IDLE_CONNECTIONS, server.request("idle")) as idle:
                with_idle = server.memory_kib()
            if idle.result["answered"] != IDLE_CONNECTIONS or idle.result["ended"] or idle.result["unavailable"]:
                raise Failure(f"{server.name} did not hold the connections: {idle.result}")
        rows.append([server.name, at_start / 1024, with_idle / 1024, (with_idle - at_start) * 1024 / IDLE_CONNECTIONS])
        if server is session.small:
            findings.figure("memory_at_start_mib", at_start / 1024)
            findings.figure("memory_with_idle_mib", with_idle / 1024)
    findings.table(
        f"Memory (RSS, MiB): after the first answer, and with {IDLE_CONNECTIONS:,} idle connections",
        ["server", "at start", "with idle", "bytes each"], rows)


STARTS = 21


def measure_start(session, findings):
    servers = (session.floor, session.nginx, session.small, session.files, session.postgres)
    times = {server.name: [] for server in servers}
    for _ in range(STARTS):
        for server in servers:
            times[server.name].append(start_to_answer(session, server))
    rows = []
    for name, values in times.items():
        took, cpu = zip(*values)
        rows.append([name, statistics.median(took), min(took), max(took), statistics.median(cpu)])
    findings.table(
        f"From start to first answer (ms, {STARTS} starts)", ["server", "median", "least", "most", "CPU time"], rows)
    findings.figure("start_over_nginx", statistics.median(
        own[0] / other[0] for own, other in zip(times[session.small.name], times[session.nginx.name])))


def start_to_answer(session, server):
    server.port = free_port()
    command = [session.tools.start, server.port, server.request("start"), *server.command()]
    process = spawn(command, (SERVER_CORE, GENERATOR_CORE), server.environment(), stdout=subprocess.PIPE, text=True)
    try:
        output, _ = process.communicate(timeout=60)
    finally:
        stop(process)
    if process.returncode != 0:
        raise Failure(f"{server.name} did not start")
    return [float(part) for part in output.split()]


# --- What must not grow ---------------------------------------------------------------------------------------------


def measure_keys(session, findings):
    """CPU of a warm request and memory, against how many storage keys are held. nginx and the floor hold one answer."""
    counts = [1000, 20000, 100000] + ([1000000] if session.arguments.long else [])
    broker = session.broker(
        "broker, many keys", session.database("keys"), counts[-1],
        TOKEN_BROKER_CACHE_MEGABYTES="8192")
    servers = [session.floor, session.nginx, broker]
    rows, memory = [], []
    with session.running(*servers):
        for count in counts:
            scenario = Scenario("keys", "--connections", 64, "--numbers", count, rotates=True)
            session.tools.read_once(broker, scenario.request(broker), count)
            memory.append(broker.memory_kib())
            results = rounds(
                session.tools, servers, [scenario], max(3, session.arguments.rounds // 2), session.arguments.seconds,
                session.say)
            rows.append([
                count, *(median(results, "keys", server.name, "server_cpu_us") for server in servers),
                memory[-1] / 1024])
    costs = {server.name: [row[1 + index] for row in rows] for index, server in enumerate(servers)}
    findings.data("keys", {"counts": counts, "cpu_us": costs, "memory_kib": memory})
    findings.table(
        "CPU of a warm request (µs), by storage keys (on PostgreSQL, all in memory)",
        ["keys", *costs, "RSS MiB"], [[f"{row[0]:,}", *row[1:]] for row in rows])
    findings.figure("bytes_per_key", (memory[2] - memory[1]) * 1024 / (counts[2] - counts[1]))
    # Each beside the floor of the same rounds, whose one answer does not change.
    cost = [own / least for own, least in zip(costs[broker.name], costs["floor"])]
    findings.figure("cpu_100k_keys_over_1k", cost[2] / cost[0])
    if session.arguments.long:
        findings.figure("cpu_1m_keys_over_1k", cost[3] / cost[0])


TENANTS = [100, 10000]


def measure_tenants(session, findings):
    """CPU of a warm request where every request is another tenant's, with another API key."""
    tools = session.tools
    broker = session.broker(
        "broker, many tenants", session.database("tenants"), 1, TOKEN_BROKER_CACHE_MEGABYTES="1024")
    with session.running(broker, cores=(SERVER_CORE, GENERATOR_CORE)):
        with concurrent.futures.ThreadPoolExecutor(16) as threads:
            keys = list(threads.map(broker.make_tenant, (f"tenant-{number}" for number in range(TENANTS[-1]))))
    costs = []
    with session.running(broker):
        requests = [
            broker.write(f"{count}.request", "\0".join(broker.head(broker.target(0), key) for key in keys[:count]))
            for count in TENANTS]
        tools.run_load(broker, requests[-1], "--count", TENANTS[-1])
        for _ in range(session.arguments.rounds):
            costs.append([
                tools.run_load(broker, request, "--seconds", session.arguments.seconds)["server_cpu_us"]
                for request in requests])
    findings.figure("cpu_10k_tenants_over_100", statistics.median(many / few for few, many in costs))
    findings.table(
        "CPU of a warm request (µs), by tenants, another one each time", ["tenants", "CPU µs"],
        [[f"{count:,}", statistics.median(windows)] for count, windows in zip(TENANTS, zip(*costs))])


SOAK = [100000, 10000000]


def measure_soak(session, findings):
    """Memory after many requests, of storage keys in turn."""
    broker = session.files
    memory, sent = [], 0
    with session.running(broker):
        request = broker.request("soak", broker.target())
        for number in SOAK:
            session.tools.run_load(
                broker, request, "--numbers", STORAGE_KEYS, "--connections", 64, "--count", number - sent)
            sent = number
            memory.append(broker.memory_kib())
    findings.figure("memory_after_soak_over_before", memory[1] / memory[0])
    findings.table(
        "Memory (RSS, MiB) after so many requests", ["requests", "RSS MiB"],
        [[f"{number:,}", kib / 1024] for number, kib in zip(SOAK, memory)])


# Of many more, each with a request all the time, the broker refuses some: see the overload.
CONNECTIONS = [1, 8, 64, 512, 1024]


def measure_connections(session, findings):
    """CPU of a warm request against connections, beside nginx and the floor."""
    servers = [session.floor, session.nginx, session.files]
    scenarios = [Scenario(f"{count}", "--connections", count) for count in CONNECTIONS]
    with session.running(*servers):
        results = rounds(
            session.tools, servers, scenarios, max(3, session.arguments.rounds // 2), session.arguments.seconds,
            session.say)
    rows = [
        [name, *(median(results, name, server.name, "server_cpu_us") for server in servers)]
        for name in (scenario.name for scenario in scenarios)]
    findings.table("CPU of a warm request (µs), by connections", ["connections", *(server.name for server in servers)], rows)
    costs = {server.name: [row[1 + index] for row in rows] for index, server in enumerate(servers)}
    findings.data("connections", {"counts": CONNECTIONS, "cpu_us": costs})


# --- Listeners of events --------------------------------------------------------------------------------------------

LISTENERS = 1000
RENEWALS_PER_S = 100
READS_PER_S = 10000
# What a server on one processor hardly gets beyond.
SATURATED = 0.9


def measure_events(session, findings):
    """CPU of a warm request while a thousand listeners are told of a hundred new tokens a second.

    Telling them costs CPU time, too; it is measured alone, and what both cost together less that is the requests'. That
    says nothing where both together take the whole processor, so that neither gets what it asks for.
    """
    tools, broker, seconds = session.tools, session.postgres, max(1, session.arguments.seconds)
    with session.running(broker):
        read = broker.request("read", broker.target())
        tools.read_once(broker, read, STORAGE_KEYS)
        listen = broker.request("listen", "/events", fields=["Accept: text/event-stream"])
        store = broker.storing_request()
        reading = ["--rate", READS_PER_S, "--numbers", STORAGE_KEYS, "--seconds", seconds]
        renewing = ["--rate", RENEWALS_PER_S, "--connections", 16, "--numbers", STORAGE_KEYS]

        def cpu_per_second(*load):
            return tools.end_load(broker, begin(*load))["server_busy"]

        def begin(*load):
            # The listeners want to run, too.
            return tools.begin_load(broker, *load, "--sleep", goes_first=True)

        count = max(3, session.arguments.rounds // 3)
        alone, unheard = [], []
        for _ in range(count):
            alone.append(cpu_per_second(read, *reading))
            unheard.append(cpu_per_second(store, *renewing, "--seconds", seconds))
        telling, together = [], []
        with crowd(tools, broker, "idle", LISTENERS, listen) as listeners:
            for _ in range(count):
                telling.append(cpu_per_second(store, *renewing, "--seconds", seconds))
                # Storing begins before the reading is measured, and ends after it.
                storing = begin(store, *renewing, "--seconds", seconds + 0.4, "--warm-up", 0)
                together.append(cpu_per_second(read, *reading))
                tools.end_load(broker, storing)
        if listeners.result["unavailable"] or listeners.result["ended"]:
            raise Failure(f"the listeners were not served: {listeners.result}")
    ratios = [(both - told) / one for one, told, both in zip(alone, telling, together)]
    is_told = statistics.median(together) < SATURATED
    findings.figure("cpu_with_listeners_over_without", statistics.median(ratios) if is_told else math.inf)
    findings.table(
        f"CPU seconds a second, {READS_PER_S:,} warm requests/s, {RENEWALS_PER_S} stored/s, {LISTENERS:,} listeners",
        ["", "CPU"], [
            ["requests alone", statistics.median(alone)], ["storing alone", statistics.median(unheard)],
            ["storing and telling", statistics.median(telling)],
            ["telling (the difference)", statistics.median(telling) - statistics.median(unheard)],
            ["requests, storing and telling", statistics.median(together)]])


# --- Overload -------------------------------------------------------------------------------------------------------

# What the server keeps of its processor: the generator, which is hardly faster than a good server, can then ask for
# twice what the server can do.
BRAKE_PERCENT = 70
OVERLOAD_CONNECTIONS = 2000


# One of them meets a moment in which the machine is away, which at this rate is what a p99 of two seconds shows.
OVERLOADS = 5


def measure_overload(session, findings):
    tools, broker = session.tools, session.files
    names = ["half", "twice", "half, first second after", "half, later"]
    figures = {
        "per_second": statistics.median, "ok": statistics.median, "unavailable": statistics.median,
        # One in any of them is to be seen.
        "dropped": statistics.median, "errors": sum, "p50_us": statistics.median, "p99_us": statistics.median}
    capacities, overloads = [], []
    for _ in range(OVERLOADS):
        with session.running(broker), brake(tools, BRAKE_PERCENT):
            request = broker.request("overload")
            capacity = statistics.median(
                tools.run_load(broker, request, "--seconds", 1)["per_second"] for _ in range(3))
            half = ["--rate", int(capacity / 2), "--seconds", 2]
            calm = tools.run_load(broker, request, *half)
            flood = tools.run_load(
                broker, request, "--rate", int(capacity * 2), "--seconds", 5, "--drop", "--connections",
                OVERLOAD_CONNECTIONS, may_fail=True)
            # From the first moment after the flood on: within a second it is to be as before.
            first = tools.run_load(
                broker, request, "--rate", int(capacity / 2), "--seconds", 1, "--warm-up", 0, may_fail=True)
            after = tools.run_load(broker, request, *half, may_fail=True)
        capacities.append(capacity)
        overloads.append([calm, flood, first, after])

    def over_calm(window):
        return statistics.median(windows[window]["p99_us"] / windows[0]["p99_us"] for windows in overloads)

    findings.figure("overload_p99_over_calm", over_calm(1))
    findings.figure("recovered_p99_over_calm", over_calm(3))
    findings.table(
        f"Overload: a server that can do {statistics.median(capacities):,.0f}/s on {100 - BRAKE_PERCENT} % of a "
        f"processor (medians of {OVERLOADS} overloads, and all of their errors)",
        ["asked for", "answers/s", "200", "503", "not sent", "errors", "p50 µs", "p99 µs"],
        [[name, *(sum_up(windows[index][figure] for windows in overloads) for figure, sum_up in figures.items())]
         for index, name in enumerate(names)])
    measure_crowds(session, findings)


# Who misbehaves, and how many of them. Processes have descriptors for half of the attempts to connect.
CROWDS = {"drip": [2000], "greedy": [200], "silent": [10000, 10000]}


def measure_crowds(session, findings):
    """What those who misbehave do to the latency of those who do not, from their first connection on.

    Both come from one processor; the generator goes first there, and sleeps when it has nothing to do.
    """
    tools, broker = session.tools, session.files

    def measure(server, behaviour, crowds):
        request = server.request("well-behaved")
        load = tools.begin_load(server, request, "--rate", 5000, "--seconds", 4, "--sleep", goes_first=True)
        with contextlib.ExitStack() as stack:
            others = [
                stack.enter_context(crowd(tools, server, behaviour, connections, request)) for connections in crowds]
            window = tools.end_load(server, load, may_fail=True)
        return window["p99_us"], sum(each.result["ended"] + each.result["refused"] for each in others)

    rows = []
    for behaviour, crowds in CROWDS.items():
        # nginx's ratio says what the machine has to do with it.
        for server in (broker, session.nginx):
            calm, disturbed = [], []
            for _ in range(3):
                # What a crowd has left behind is not to disturb the next one.
                with session.running(server):
                    calm.append(measure(server, behaviour, [])[0])
                    p99, ended = measure(server, behaviour, crowds)
                    disturbed.append(p99)
            ratio_of_each = statistics.median(late / early for early, late in zip(calm, disturbed))
            if server is broker:
                findings.figure(f"p99_with_{behaviour}_over_calm", ratio_of_each)
            rows.append([
                f"{sum(crowds):,} {behaviour}: {server.name}", statistics.median(calm), statistics.median(disturbed),
                ratio_of_each, ended])
    findings.table(
        "p99 of 5,000 warm requests/s without and beside others (µs)",
        ["others", "without", "beside", "ratio", "ended by the server"], rows)
