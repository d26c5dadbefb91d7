"""What the audit of reads costs on PostgreSQL: every read, one in a thousand, and none."""

import statistics

from measure import STORAGE_KEYS, Scenario

# By the values of TOKEN_BROKER_AUDIT_READS.
READS = ["none", "1000", "all"]
SCENARIOS = [
    Scenario("64 callers at once", "--connections", 64, rotates=True),
    Scenario("one caller", "--connections", 1, rotates=True),
    Scenario("2,000/s", "--connections", 64, "--rate", 2000, rotates=True),
]
FIGURES = ("server_cpu_us", "database_cpu_us", "per_second", "p50_us", "p99_us")
# Those that are compared with what they are without an audit. Without one, no read touches the database.
COMPARED = ("server_cpu_us", "per_second", "p50_us", "p99_us")


def window(session, broker, scenario):
    """One window in which all requests count, so that PostgreSQL's CPU time in it is theirs."""
    database = session.database_server
    before = database.cpu_ns()
    found = session.tools.run_load(
        broker, scenario.request(broker), *scenario.options, "--seconds", session.arguments.seconds, "--warm-up", 0)
    spent = sum(time - before.get(process, 0) for process, time in database.cpu_ns().items())
    return found | {"database_cpu_us": spent / 1000 / found["requests"]}


def measure_audit(session, findings):
    """CPU time, throughput and latency of warm reads, by which of them are audited."""
    brokers = {
        reads: session.broker(
            f"broker, reads audited: {reads}", session.database(f"audit_{reads}"), TOKEN_BROKER_AUDIT_READS=reads)
        for reads in READS}
    results = {scenario.name: {reads: [] for reads in READS} for scenario in SCENARIOS}
    count = session.arguments.rounds
    with session.running(*brokers.values()):
        for broker in brokers.values():
            session.tools.read_once(broker, broker.request("warm", broker.target()), STORAGE_KEYS)
        for number in range(count):
            shift = number % len(READS)
            for scenario in SCENARIOS:
                # No value always goes first.
                for reads in READS[shift:] + READS[:shift]:
                    results[scenario.name][reads].append(window(session, brokers[reads], scenario))
            session.say(f"round {number + 1} of {count}")
    findings.data("audit", results)
    for name, windows in results.items():
        findings.table(
            f"Reads audited on PostgreSQL, {name} (medians of {count} windows; × those with none)",
            ["audited", "CPU µs", "PostgreSQL's CPU µs", "per second", "p50 µs", "p99 µs", "× CPU", "× per second",
             "× p50", "× p99"],
            [[reads, *(statistics.median(one[figure] for one in windows[reads]) for figure in FIGURES),
              *(over_none(windows, reads, figure) for figure in COMPARED)] for reads in READS])


def over_none(windows, reads, figure):
    """The median of the ratios within rounds."""
    return statistics.median(
        one[figure] / none[figure] for one, none in zip(windows[reads], windows["none"]))
