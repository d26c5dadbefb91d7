import BrokerTesting
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import Testing

@testable import DevelopmentProvider

@Suite struct `Request log` {
    @Test func `a request is recorded with digests instead of secrets`() async throws {
        let fixture = ProviderFixture(clientID: "confidential")
        _ = await fixture.driver.post(
            fixture.driver.tokenPath,
            [
                .init("grant_type", "refresh_token"), .init("client_id", "confidential"),
                .init("client_secret", "s3cret"), .init("refresh_token", "abc"), .init("scope", "a b"),
            ], query: "refresh_token=abc", fields: ["User-Agent": "broker/1", "Accept": "application/json"])
        let record = try #require(fixture.provider.requests.last)
        #expect(record.number == 1)
        #expect(record.endpoint == .token)
        #expect(record.method == "POST")
        #expect(record.grant == "refresh_token")
        #expect(record.clientID == "confidential")
        #expect(record.clientAuthentication == .post)
        #expect(record.receivedAt == fixture.clock.milliseconds)
        #expect(record.parameters["scope"] == "a b")
        // SHA-256 of "abc", an example of FIPS 180-4.
        #expect(
            record.parameters["refresh_token"]
                == "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
        #expect(record.parameters["client_secret"]?.hasPrefix("sha256:") == true)
        #expect(record.queryParameters == ["refresh_token"])
        #expect(record.userAgent == "broker/1")
        #expect(record.accept == "application/json")
        #expect(record.outcome == .answered(status: 400))
        #expect(record.error == "invalid_grant")
    }

    @Test func `counters count by endpoint, grant and status`() async throws {
        let fixture = ProviderFixture()
        let token = try await fixture.refreshToken()
        for _ in 0..<3 { _ = await fixture.driver.refresh(token) }
        _ = await fixture.driver.post(fixture.driver.tokenPath, [.init("grant_type", "made-up")])
        let counters = fixture.provider.counters
        #expect(counters.requests(.authorize) == 2)
        #expect(counters.requests(.token) == 5)
        #expect(counters.requests(.refreshToken) == 3)
        #expect(counters.requests(.authorizationCode) == 1)
        #expect(counters.requests(.clientCredentials) == 0)
        #expect(counters.statuses == [200: 5, 302: 1, 400: 1])
        fixture.provider.resetRequests()
        #expect(fixture.provider.counters == RequestCounters())
        #expect(fixture.provider.requests.isEmpty)
        #expect(await fixture.driver.refresh(token).status == .ok)
        #expect(fixture.provider.requests.map(\.number) == [8])
    }

    @Test func `long values are cut`() async throws {
        let fixture = ProviderFixture()
        let long = String(repeating: "x", count: 10_000)
        _ = await fixture.driver.post(
            fixture.driver.tokenPath,
            // A form that contains a name of more than 128 bytes is refused.
            [
                .init("grant_type", WireText(long)), .init("scope", WireText(long)),
                .init(WireText(String(repeating: "n", count: 128)), WireText(long)),
            ],
            fields: ["User-Agent": long])
        let record = try #require(fixture.provider.requests.last)
        #expect(record.grant?.count == 512)
        #expect(record.userAgent?.count == 512)
        #expect(record.parameters.allSatisfy { $0.key.count <= 512 && $0.value.count <= 512 })
    }

    @Test func `the newest twenty thousand requests are recorded`() async throws {
        let fixture = ProviderFixture()
        for _ in 0..<20_001 { _ = await fixture.driver.refresh("x") }
        let requests = fixture.provider.requests
        #expect(requests.count == 20_000)
        #expect(requests.first?.number == 2)
        #expect(requests.last?.number == 20_001)
        #expect(fixture.provider.counters.requests(.token) == 20_001)
    }

    @Test func `a waiter is resumed for earlier and for later requests`() async throws {
        let fixture = ProviderFixture()
        let provider = fixture.provider
        async let second: Void = provider.waitForRequests(2, at: .token, grant: .refreshToken)
        _ = await fixture.driver.refresh("x")
        try await provider.waitForRequests(1, at: .token)
        _ = await fixture.driver.refresh("x")
        try await second
        #expect(provider.counters.requests(.refreshToken) == 2)
    }

    @Test func `cancelling ends a wait`() async {
        let provider = ProviderFixture().provider
        let task = Task { try await provider.waitForRequests(1, at: .token) }
        task.cancel()
        await #expect(throws: CancellationError.self) { try await task.value }
    }
}
