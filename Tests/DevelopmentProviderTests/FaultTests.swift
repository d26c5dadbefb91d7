import BrokerTesting
import DevelopmentProvider
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import Testing

@Suite struct `Scripted faults` {
    private static func rotating() -> ProviderFixture {
        ProviderFixture(.rfc) { $0.rotation = .rotate(grace: .seconds(60)) }
    }

    private static func generations(_ fixture: ProviderFixture) -> Int {
        fixture.provider.ledger.users.first?.families.first?.family.lastGeneration ?? 0
    }

    @Test func `a scripted response is sent as often as scripted, without processing the request`() async throws {
        let fixture = Self.rotating()
        let token = try await fixture.refreshToken()
        fixture.provider.script(
            Fault(.token, grant: .refreshToken, times: 2, status: .serviceUnavailable, fields: ["Retry-After": "7"]))
        for _ in 0..<2 {
            let answer = await fixture.driver.refresh(token)
            #expect(answer.status == .serviceUnavailable)
            #expect(answer.fields["Retry-After"] == "7")
            #expect(answer.body.isEmpty)
        }
        #expect(Self.generations(fixture) == 1)
        #expect(await fixture.driver.refresh(token).status == .ok)
        #expect(fixture.provider.counters.faults == 2)
        #expect(fixture.provider.faults.isEmpty)
        #expect(fixture.provider.requests.map(\.fault) == [nil, nil, nil, .answer, .answer, nil])
    }

    @Test func `a response has the scripted content`() async throws {
        let fixture = Self.rotating()
        fixture.provider.script(Fault(.token, status: .badRequest, body: Array(#"{"error":"invalid_grant"}"#.utf8)))
        let answer = await fixture.driver.refresh("x")
        #expect(answer.json?["error"]?.string == "invalid_grant")
        #expect(answer.fields["Content-Type"] == "application/json")
    }

    @Test func `faults apply to their endpoint and grant only, in order`() async throws {
        let fixture = Self.rotating()
        fixture.provider.script(Fault(.token, grant: .refreshToken, status: Status(500)))
        fixture.provider.script(Fault(.token, status: Status(502)))
        fixture.provider.script(Fault(.authorize, status: Status(503)))
        fixture.provider.script(Fault(.metadata, status: Status(504)))
        fixture.provider.script(Fault(.deviceAuthorization, status: Status(505)))
        fixture.provider.script(Fault(.revoke, status: Status(506)))
        let driver = fixture.driver
        #expect(await driver.redeem("x").status.code == 502)
        #expect(await driver.redeem("x").status.code == 400)
        #expect(await driver.refresh("x").status.code == 500)
        #expect(await driver.get("/authorize").status.code == 503)
        #expect(await driver.get("/.well-known/openid-configuration").status.code == 504)
        #expect(await driver.post(driver.devicePath, []).status.code == 505)
        #expect(await driver.post("/revoke", []).status.code == 506)
    }

    @Test func `a response after processing hides the result`() async throws {
        let fixture = Self.rotating()
        let token = try await fixture.refreshToken()
        fixture.provider.script(Fault(.token, mode: .answerAfterWork))
        #expect(await fixture.driver.refresh(token).status == .internalServerError)
        #expect(Self.generations(fixture) == 2)
        #expect(await fixture.driver.refresh(token).status == .ok)
        #expect(fixture.provider.requests.last?.refresh?.outcome == .graceReplay)
    }

    @Test(arguments: [(Fault.Mode.dropBeforeWork, 1), (.dropAfterWork, 2)])
    func `a connection is closed before or after processing`(mode: Fault.Mode, generations: Int) async throws {
        let fixture = Self.rotating()
        let token = try await fixture.refreshToken()
        fixture.provider.script(Fault(.token, mode: mode))
        let answer = await fixture.driver.refresh(token)
        #expect(answer.abortsConnection)
        #expect(answer.closesConnection)
        #expect(answer.body.isEmpty)
        #expect(Self.generations(fixture) == generations)
        #expect(fixture.provider.requests.last?.outcome == .dropped)
        #expect(fixture.provider.counters.dropped == 1)
    }

    @Test func `malformed content is the first half of the correct content, or the scripted content`() async throws {
        let fixture = Self.rotating()
        let token = try await fixture.refreshToken()
        fixture.provider.script(Fault(.token, mode: .malformed))
        let half = await fixture.driver.refresh(token)
        #expect(half.status == .ok)
        #expect(half.text.hasPrefix(#"{"access_token":"#))
        #expect(half.json == nil)
        fixture.provider.script(Fault(.token, mode: .malformed, body: Array("<html>".utf8)))
        let html = await fixture.driver.refresh(token)
        #expect(html.status == .ok)
        #expect(html.text == "<html>")
        #expect(Self.generations(fixture) == 3)
    }

    @Test func `a delay passes before the request is processed`() async throws {
        let fixture = Self.rotating()
        let token = try await fixture.refreshToken()
        fixture.provider.script(Fault(.token, delay: .seconds(30)))
        async let answer = fixture.driver.refresh(token)
        await fixture.clock.waitForSleepers(1)
        #expect(Self.generations(fixture) == 1)
        #expect(fixture.provider.requests.last?.outcome == .inFlight)
        fixture.clock.advance(by: .seconds(30))
        #expect(await answer.status == .ok)
        #expect(fixture.provider.requests.last?.outcome == .answered(status: 200))
    }

    @Test func `a response delay passes after the request is processed`() async throws {
        let fixture = Self.rotating()
        let token = try await fixture.refreshToken()
        fixture.provider.script(Fault(.token, answerDelay: .seconds(30)))
        async let answer = fixture.driver.refresh(token)
        await fixture.clock.waitForSleepers(1)
        #expect(Self.generations(fixture) == 2)
        fixture.clock.advance(by: .seconds(30))
        #expect(await answer.status == .ok)
    }

    @Test func `a request whose client closes the connection during a delay is not processed`() async throws {
        let fixture = Self.rotating()
        let token = try await fixture.refreshToken()
        fixture.provider.script(Fault(.token, delay: .seconds(30)))
        let driver = fixture.driver
        let task = Task { await driver.refresh(token) }
        await fixture.clock.waitForSleepers(1)
        task.cancel()
        #expect(await task.value.abortsConnection)
        #expect(Self.generations(fixture) == 1)
        #expect(fixture.provider.requests.last?.outcome == .dropped)
    }

    @Test func `removed faults have no effect`() async throws {
        let fixture = Self.rotating()
        fixture.provider.script(Fault(.token, times: 9, status: Status(500)))
        fixture.provider.removeFaults()
        #expect(await fixture.driver.refresh("x").status == .badRequest)
    }
}
