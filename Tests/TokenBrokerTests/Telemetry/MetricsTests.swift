import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import HTTPSClient
import HTTPServer
import JSON
import OAuth
import Reactor
import Testing
import TokenBroker

@Suite struct `Counting` {
    private static func metrics(_ broker: BrokerHarness) async -> [String] {
        await broker.call(.get, "/metrics", key: nil).text.split(separator: "\n").map(String.init)
    }

    @Test func `the text is Prometheus' format and needs no key`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        broker.transport.enqueue(.json(200, BrokerHarness.token("a2")))
        _ = await broker.get()
        let answer = await broker.call(.get, "/metrics", key: nil)
        #expect(answer.status == 200)
        #expect(answer.fields["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8")
        #expect(answer.text.hasSuffix("\n"))
        let sample =
            /token_broker_[a-z_]+(\{[a-z_]+="[^"\\\n]*"(,[a-z_]+="[^"\\\n]*")*\})? (\+Inf|[0-9]+(\.[0-9]+)?(e-?[0-9]+)?)/
        var families: Set<String> = []
        for line in answer.text.split(separator: "\n") {
            if line.hasPrefix("# HELP ") { continue }
            if line.hasPrefix("# TYPE ") {
                // One block for each name.
                #expect(families.insert(String(line)).inserted)
                #expect(line.wholeMatch(of: /# TYPE token_broker_[a-z_]+ (counter|gauge|histogram)/) != nil)
                continue
            }
            #expect(line.wholeMatch(of: sample) != nil, "\(line)")
        }
        #expect(families.count >= 8)
    }

    @Test func `each outcome of a token read has its count`() async throws {
        let broker = try await BrokerHarness()
        broker.time.holdSleeps()
        await broker.makeTenant()
        _ = await broker.get()
        _ = await broker.get("level=user")
        _ = await broker.get("policy=local")
        let tag = await broker.set("a1", refresh: "r1")
        _ = await broker.get()
        _ = await broker.get(fields: ["If-None-Match": tag])
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("a2"))))
        async let renewed = broker.get("policy=local_force_refresh")
        await gate.arrivals()
        async let joined = broker.get("policy=local_force_refresh", fields: ["Prefer": "wait=1"])
        await broker.time.sleepers(of: .seconds(1))
        gate.open()
        #expect(await renewed.token == "a2")
        #expect(await joined.token == "a2")
        broker.transport.enqueue(.json(403, ""))
        _ = await broker.get("policy=local_force_refresh")
        let lines = await Self.metrics(broker)
        for (outcome, count) in [
            ("basic", 1), ("refused", 2), ("fresh", 1), ("not_modified", 1), ("renewed", 1), ("joined", 1),
            ("failed", 1),
        ] {
            #expect(
                lines.contains(#"token_broker_token_reads_total{provider="tidal",outcome="\#(outcome)"} \#(count)"#),
                "\(outcome)")
        }
    }

    @Test func `each outcome of a renewal has its count`() async throws {
        let store = FaultyStore()
        let broker = try await BrokerHarness(store: store)
        await broker.makeTenant()
        let force = "policy=local_force_refresh"
        await broker.set("a1", refresh: "r1")
        broker.transport.enqueue(
            .json(200, BrokerHarness.token("a2")), .json(403, ""), .json(400, #"{"error": "invalid_grant"}"#))
        for _ in 0..<3 { _ = await broker.get(force) }
        await broker.set("a1", lifetime: .zero)
        _ = await broker.get()
        await broker.set("a1", refresh: "r1")
        let gate = Gate()
        broker.transport.enqueue(.after(gate, .json(200, BrokerHarness.token("late"))))
        async let overtaken = broker.get("api_error_sub_status=11003")
        await gate.arrivals()
        await broker.set("set-1", refresh: "r2")
        gate.open()
        #expect(await overtaken.token == "set-1")
        await broker.makeTenant("t2", #"{"client_id": "c1", "client_secret": "s1"}"#)
        broker.transport.enqueue(.json(200, BrokerHarness.token("client-1")))
        _ = await broker.get(tenant: "t2")
        let lines = await Self.metrics(broker)
        for (grant, outcome) in [
            ("refresh_token", "succeeded"), ("refresh_token", "failed"), ("refresh_token", "session_ended"),
            ("none", "retired"), ("refresh_token", "overtaken"), ("client_credentials", "succeeded"),
        ] {
            let name = #"token_broker_refresh_total{provider="tidal",grant="\#(grant)",outcome="\#(outcome)"} 1"#
            #expect(lines.contains(name), "\(name)")
        }
        #expect(lines.contains(#"token_broker_refresh_duration_seconds_count{provider="tidal"} 6"#))
    }

    @Test func `requests to a provider are counted by status and timed`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.set("a1", refresh: "r1", lifetime: .zero)
        broker.transport.enqueue(
            .json(503, ""), .failure(.connectFailed), .json(200, BrokerHarness.token("a2")))
        _ = await broker.get()
        let lines = await Self.metrics(broker)
        for code in ["503", "error", "200"] {
            #expect(
                lines.contains(
                    #"token_broker_provider_requests_total{provider="tidal",endpoint="token",code="\#(code)"} 1"#))
        }
        let labels = #"provider="tidal",endpoint="token""#
        #expect(lines.contains(#"token_broker_provider_request_duration_seconds_bucket{\#(labels),le="0.0001"} 3"#))
        #expect(lines.contains(#"token_broker_provider_request_duration_seconds_bucket{\#(labels),le="+Inf"} 3"#))
        #expect(lines.contains(#"token_broker_provider_request_duration_seconds_count{\#(labels)} 3"#))
        // The renewal took its two waits: 0.5 s and 1 s.
        let renewal = "token_broker_refresh_duration_seconds"
        #expect(lines.contains(#"\#(renewal)_bucket{provider="tidal",le="1.0"} 0"#))
        #expect(lines.contains(#"\#(renewal)_bucket{provider="tidal",le="2.5"} 1"#))
        #expect(lines.contains(#"\#(renewal)_sum{provider="tidal"} 1.5"#))
    }

    @Test func `requests are counted by route and not by what a stranger makes up`() async throws {
        let broker = try await BrokerHarness()
        let service = Service(broker.broker)
        _ = await broker.call(.get, "/tenants/some-name")
        _ = await broker.call(Method("BREW"), "/canary-path")
        _ = await broker.call(Method("CANARY"), "/livez")
        _ = service.response(toFault: Status(431), detail: "The head is too large.")
        let lines = await Self.metrics(broker)
        for labels in [
            #"route="/tenants/{tenant}",method="GET",code="404""#, #"route="unknown",method="OTHER",code="404""#,
            #"route="unknown",method="OTHER",code="405""#, #"route="malformed",method="OTHER",code="431""#,
        ] {
            #expect(lines.contains("token_broker_http_requests_total{\(labels)} 1"), "\(labels)")
        }
        let text = lines.joined()
        #expect(!text.contains("canary") && !text.contains("CANARY") && !text.contains("some-name"))
    }

    @Test(arguments: Refusal.allCases)
    func `what is refused unread is no malformed request, and a line tells of many`(refusal: Refusal) async throws {
        let broker = try await BrokerHarness()
        let service = Service(broker.broker)
        let before = broker.log.count
        let response = service.response(to: refusal)
        #expect(response.status == .serviceUnavailable)
        #expect(BrokerHarness.Answer(response).code == "retryable_error")
        #expect(broker.log.count == before)
        service.refused(refusal, count: 1000)
        #expect(broker.log.count == before + 1)
        let line = try #require(broker.log.last)
        #expect(line.contains(#""level":"warning","event":"requests_refused","#))
        #expect(line.hasSuffix(#""reason":"\#(refusal.name)","count":1000}"#))
        #expect(
            (await Self.metrics(broker)).allSatisfy { line in
                !line.contains("http_requests_total{route=\"malformed\"") || line.hasSuffix(" 0")
            })
    }

    @Test func `every series of what is counted is there before the first event, at 0`() async throws {
        let broker = try await BrokerHarness()
        // A provider has series once this process has read its profile, as for a tenant.
        #expect(
            [ProviderPreset.tidal, .oidc, .spotify, .authgear].allSatisfy { ProviderPreset.inUse.contains($0.name) })
        let lines = await Self.metrics(broker)
        func has(_ series: String) -> Bool { lines.contains("token_broker_\(series) 0") }
        for provider in ["tidal", "oidc", "spotify", "authgear"] {
            for outcome in Metrics.TokenRead.allCases {
                #expect(has(#"token_reads_total{provider="\#(provider)",outcome="\#(outcome.rawValue)"}"#))
            }
            for outcome in Metrics.Renewal.allCases {
                for grant in ["refresh_token", "upgrade", "client_credentials", "none"] {
                    let labels = #"provider="\#(provider)",grant="\#(grant)",outcome="\#(outcome.rawValue)""#
                    #expect(has("refresh_total{\(labels)}"))
                }
            }
            #expect(has(#"refresh_outcome_unknown_total{provider="\#(provider)"}"#))
            #expect(has(#"refresh_duration_seconds_count{provider="\#(provider)"}"#))
            for endpoint in ["token", "device_authorization", "revocation", "metadata", "jwks"] {
                let labels = #"provider="\#(provider)",endpoint="\#(endpoint)""#
                for code in ["200", "400", "401", "429", "503", "error"] {
                    #expect(has(#"provider_requests_total{\#(labels),code="\#(code)"}"#))
                }
                #expect(has("provider_request_duration_seconds_count{\(labels)}"))
            }
        }
        for outcome in ["renewed", "overtaken", "failed", "cancelled", "postponed"] {
            #expect(has(#"proactive_refresh_total{outcome="\#(outcome)"}"#))
        }
        for flow in ["standard", "device"] {
            for outcome in ["completed", "expired", "authorization_error", "network_error"] {
                #expect(has(#"logins_total{flow="\#(flow)",outcome="\#(outcome)"}"#))
            }
        }
        for outcome in ["granted", "pending", "slow_down", "refused", "rate_limited", "server_error", "unreachable"] {
            #expect(has(#"device_polls_total{outcome="\#(outcome)"}"#))
        }
        #expect(has("refresh_lease_wait_seconds_count"))
        for (method, route) in Service.operations(of: broker.broker) {
            for code in [200, 400, 401, 429, 500, 503] {
                #expect(has(#"http_requests_total{route="\#(route)",method="\#(method)",code="\#(code)"}"#))
            }
            #expect(has(#"http_request_duration_seconds_count{route="\#(route)"}"#))
        }
    }

    @Test func `the alert rules ask for series that there are from the start`() async throws {
        let broker = try await BrokerHarness()
        broker.broker.observe { ServerStatistics() }
        let lines = await Self.metrics(broker)
        let path = #filePath.split(separator: "/").dropLast(4).map { "/" + $0 }.joined()
        let rules = String(
            decoding: try SmallFile.read(path + "/Deploy/prometheus/alerts.yml", limit: 100_000), as: UTF8.self)
        let names = Set(rules.matches(of: /token_broker_[a-z_]+/).map { String($0.output) })
        #expect(names.count >= 8)
        for name in names {
            let isThere = lines.contains { line in ["{", " ", "_count"].contains { line.hasPrefix(name + $0) } }
            #expect(isThere, "\(name)")
        }
    }

    @Test func `logins are counted by how they end`() async throws {
        let broker = try await BrokerHarness()
        await broker.makeTenant()
        await broker.logIn()
        let line = #"token_broker_logins_total{flow="standard",outcome="completed"} 1"#
        #expect(await Self.metrics(broker).contains(line))
    }

    @Test func `the server's own counts are shown`() async throws {
        let broker = try await BrokerHarness()
        #expect(!(await Self.metrics(broker)).contains { $0.hasPrefix("token_broker_http_connections ") })
        broker.broker.observe {
            var statistics = ServerStatistics()
            statistics.connectionsOpen = 3
            statistics.connectionsAccepted = 5
            statistics.connectionsEvicted = 4
            statistics.refusals = [.connections: 2, .source: 6, .displacement: 8, .overload: 7, .answers: 9]
            statistics.connectionsStalled = 10
            return statistics
        }
        let lines = await Self.metrics(broker)
        #expect(lines.contains("token_broker_http_connections 3"))
        #expect(lines.contains("token_broker_http_connections_total 5"))
        #expect(lines.contains(#"token_broker_http_connections_refused_total{reason="connections"} 2"#))
        #expect(lines.contains(#"token_broker_http_connections_refused_total{reason="source"} 6"#))
        #expect(lines.contains(#"token_broker_http_connections_evicted_total{state="waiting"} 4"#))
        #expect(lines.contains(#"token_broker_http_connections_evicted_total{state="in_use"} 8"#))
        #expect(!lines.contains { $0.hasPrefix("token_broker_operations_connections_refused_total ") })
        #expect(lines.contains(#"token_broker_http_connections_stalled_total{reason="time"} 10"#))
        #expect(lines.contains(#"token_broker_http_connections_stalled_total{reason="answers"} 9"#))
        #expect(lines.contains(#"token_broker_http_requests_refused_total{reason="overload"} 7"#))
        #expect(lines.contains(#"token_broker_http_requests_refused_total{reason="contents"} 0"#))
    }
}
