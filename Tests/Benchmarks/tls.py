"""TLS 1.3 at the broker's listener and at nginx's: warm requests, and full handshakes. The client is secure_load.c."""

from measure import Scenario, median, ratio, rounds
from servers import Nginx

WARM = Scenario("64 connections", "--connections", 64)
HANDSHAKES = Scenario("full handshakes", "--connections", 64, "--handshakes")
FIGURES = ("server_cpu_us", "server_busy", "generator_busy", "per_second", "p50_us", "p99_us")


def broker(session, name, program):
    made = session.broker(name, keys=1, program=program)
    made.use_tls(session.certificate)
    return made


def measure_tls(session, findings):
    """CPU time of each warm request and of each full handshake. Both servers have the same certificate."""
    arguments = session.arguments
    own = broker(session, "broker, TLS", arguments.broker)
    nginx = Nginx(session.path("nginx-tls"), (own.key, own.etag, own.content), session.certificate)
    beside = [broker(session, f"broker, TLS, {program}", program) for program in arguments.beside]
    servers = [nginx, own, *beside]
    with session.running(*servers):
        results = rounds(
            session.tools, servers, [WARM, HANDSHAKES], arguments.rounds, arguments.seconds, session.say)
    findings.data("tls", results)
    findings.figure("tls_cpu_over_nginx", ratio(results, WARM.name, own.name, nginx.name, "server_cpu_us"))
    findings.figure("handshake_cpu_over_nginx", ratio(results, HANDSHAKES.name, own.name, nginx.name, "server_cpu_us"))
    for scenario in (WARM, HANDSHAKES):
        findings.table(
            f"TLS 1.3, {scenario.name} (medians of {arguments.rounds} windows)",
            ["server", "CPU µs", "busy", "generator", "per second", "p50 µs", "p99 µs", "× nginx's CPU"],
            [[server.name, *(median(results, scenario.name, server.name, figure) for figure in FIGURES),
              ratio(results, scenario.name, server.name, nginx.name, "server_cpu_us")] for server in servers])
