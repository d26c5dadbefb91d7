import BrokerCore
import BrokerTesting
import CredentialStore
import ExternalText
import HTTPCodec
import HTTPServer
import Reactor
import Testing
import TokenBroker

@Suite(.timeLimit(.minutes(2))) struct `Requests without a valid key` {
    private static func source(_ text: String) -> NetworkSource {
        NetworkSource(NetworkAddress(parsing: Array(text.utf8)[...])!)
    }

    private static let stranger = source("192.0.2.1")

    private static func broker(store: any RecordStore = MemoryRecordStore()) async throws -> BrokerHarness {
        try await BrokerHarness(store: store, time: ManualTime(skipsSleeps: false))
    }

    private static func call(
        _ broker: BrokerHarness, key: String? = "wrong", from source: NetworkSource = stranger
    ) async -> BrokerHarness.Answer {
        await broker.call(.get, "/credentials", key: key, tenant: "t1", source: source)
    }

    /// Twenty, which is how many are answered at once.
    private static func useUpBurst(_ broker: BrokerHarness, from source: NetworkSource = stranger) async {
        for number in 0..<20 {
            #expect(await call(broker, key: number % 2 == 0 ? "wrong" : nil, from: source).status == 401)
        }
    }

    private static func counts(_ broker: BrokerHarness) async -> [String] {
        await broker.call(.get, "/metrics", key: nil).text.split(separator: "\n").filter {
            $0.hasPrefix("token_broker_authentication_failures_total{")
        }.map(String.init)
    }

    @Test func `wait beyond twenty a second of one source, and beyond twenty that wait they are turned away`()
        async throws
    {
        let broker = try await Self.broker()
        await Self.useUpBurst(broker)
        let waiting = (0..<20).map { _ in Task { await Self.call(broker) } }
        await broker.time.sleepers(of: (1...20).map { .milliseconds(50 * $0) })
        #expect(Set(broker.time.slept) == Set((1...20).map { .milliseconds(50 * $0) }))
        let refused = await Self.call(broker)
        #expect((refused.status, refused.code) == (429, "too_many_requests"))
        // The next token that no request waits for comes in 1050 ms.
        #expect(refused.fields["Retry-After"] == "2")
        broker.time.advance(by: .seconds(1))
        for task in waiting {
            let answer = await task.value
            #expect((answer.status, answer.fields["WWW-Authenticate"]) == (401, "Bearer"))
        }
        #expect(
            await Self.counts(broker) == [
                #"token_broker_authentication_failures_total{outcome="answered"} 20"#,
                #"token_broker_authentication_failures_total{outcome="delayed"} 20"#,
                #"token_broker_authentication_failures_total{outcome="refused"} 1"#,
            ])
        let quota = #"token_broker_quota_refusals_total{quota="authentication_failure_rate"} 1"#
        #expect(await broker.call(.get, "/metrics", key: nil).text.contains(quota))
    }

    @Test func `do not delay a good key from the same source, in memory or not`() async throws {
        let store = FaultyStore()
        let broker = try await Self.broker(store: store)
        await broker.makeTenant()
        let key = await broker.makeKey()
        await Self.useUpBurst(broker)
        let waiting = (0..<20).map { _ in Task { await Self.call(broker) } }
        await broker.time.sleepers(of: (1...20).map { .milliseconds(50 * $0) })
        // The clock stands still: who is delayed does not come back.
        #expect(await Self.call(broker, key: BrokerHarness.adminKey).status == 200)
        #expect(await Self.call(broker, key: key).status == 200)
        // Another process on the same records, which has to look the key up.
        let other = try await Self.broker(store: store)
        await Self.useUpBurst(other)
        let reads = store.reads
        #expect(await Self.call(other, key: key).status == 200)
        // The key, that it has not ended, the tenant and the credentials.
        #expect(store.reads <= reads + 4)
        #expect(other.time.slept == [])
        broker.time.advance(by: .seconds(1))
        for task in waiting { _ = await task.value }
    }

    @Test func `do not delay those of other sources, of which a v6 network of 64 bits is one`() async throws {
        let broker = try await Self.broker()
        await Self.useUpBurst(broker, from: Self.source("2001:db8::1"))
        let late = Task { await Self.call(broker, from: Self.source("2001:db8::ffff:1")) }
        await broker.time.sleepers(of: .milliseconds(50))
        #expect(await Self.call(broker, from: Self.source("2001:db8:0:1::1")).status == 401)
        #expect(await Self.call(broker).status == 401)
        broker.time.advance(by: .milliseconds(50))
        #expect(await late.value.status == 401)
    }

    @Test func `wait no more than a thousand at once`() async throws {
        let broker = try await Self.broker()
        let sources = (0..<51).map { Self.source("192.0.2.\($0)") }
        for source in sources { await Self.useUpBurst(broker, from: source) }
        let waiting = sources.dropLast().flatMap { source in
            (0..<20).map { _ in Task { await Self.call(broker, from: source) } }
        }
        await broker.time.sleepers(of: (0..<1000).map { .milliseconds(50 * ($0 % 20 + 1)) })
        #expect(await Self.call(broker, from: sources[50]).status == 429)
        broker.time.advance(by: .seconds(1))
        for task in waiting { #expect(await task.value.status == 401) }
        let later = Task { await Self.call(broker, from: sources[50]) }
        #expect(await later.value.status == 401)
    }

    @Test func `are not slowed where the operator says so`() async throws {
        let broker = try await BrokerHarness(time: ManualTime(skipsSleeps: false)) {
            $0.rates.authenticationFailures = nil
        }
        for _ in 0..<100 { #expect(await Self.call(broker).status == 401) }
    }
}
