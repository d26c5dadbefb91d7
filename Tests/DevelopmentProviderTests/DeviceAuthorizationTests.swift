import BrokerTesting
import DevelopmentProvider
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import Testing

@Suite struct `Device authorization` {
    private static func start(_ driver: ProviderDriver) async throws -> (
        device: String, user: String, response: JSONValue
    ) {
        let response = await driver.post(
            driver.devicePath, [.init("client_id", driver.clientID), .init("scope", "r_usr")])
        let members = try #require(response.json)
        let device = try #require((members["deviceCode"] ?? members["device_code"])?.text)
        let user = try #require((members["userCode"] ?? members["user_code"])?.text)
        return (device, user, members)
    }

    private static func poll(_ driver: ProviderDriver, _ code: String) async -> Response {
        await driver.token(.deviceCode, [.init("device_code", code)])
    }

    private static func decide(
        _ driver: ProviderDriver, _ userCode: String, _ decision: String, user: String = "alice"
    ) async -> Response {
        await driver.post(
            "/link", [.init("user_code", userCode), .init("user", user), .init("decision", decision)])
    }

    @Test func `TIDAL answers in camelCase and without a scheme`() async throws {
        let fixture = ProviderFixture { $0.baseURL = BaseURL("https://id.test:8443")! }
        let (_, userCode, members) = try await Self.start(fixture.driver)
        #expect(
            Set(try #require(members.object).keys) == [
                "deviceCode", "userCode", "verificationUri", "verificationUriComplete", "expiresIn", "interval",
            ])
        #expect(userCode.count == 5)
        #expect(members["verificationUri"]?.string == "id.test:8443/link")
        #expect(members["verificationUriComplete"]?.string == "id.test:8443/link/" + userCode)
        #expect(members["expiresIn"]?.integer == 300)
        #expect(members["interval"]?.integer == 2)
    }

    @Test func `the RFC profile answers in RFC 8628's names`() async throws {
        let (_, userCode, members) = try await Self.start(ProviderFixture(.rfc).driver)
        #expect(
            Set(try #require(members.object).keys) == [
                "device_code", "user_code", "verification_uri", "verification_uri_complete", "expires_in", "interval",
            ])
        #expect(userCode.count == 9)
        #expect(members["verification_uri"]?.string == "http://127.0.0.1:8181/link")
        #expect(members["verification_uri_complete"]?.string == "http://127.0.0.1:8181/link/" + userCode)
        #expect(members["expires_in"]?.integer == 600)
        #expect(members["interval"]?.integer == 5)
    }

    @Test(arguments: ProviderProfile.withLoginPage)
    func `polls are pending until the user approves, and then work once`(profile: ProviderProfile) async throws {
        let fixture = ProviderFixture(profile)
        let (device, user, _) = try await Self.start(fixture.driver)
        let subStatus: Int64? = profile == .tidal ? 1002 : nil
        expectError(await Self.poll(fixture.driver, device), "authorization_pending", subStatus: subStatus)
        #expect(await Self.decide(fixture.driver, user, "approve").status == .ok)
        fixture.clock.advance(by: .seconds(5))
        let response = await Self.poll(fixture.driver, device)
        #expect(response.status == .ok)
        #expect(fixture.isActive(response))
        #expect(response.json?["scope"]?.string == "r_usr")
        let refreshToken = try #require(response.json?["refresh_token"]?.text)
        #expect(await fixture.driver.refresh(refreshToken).status == .ok)
        fixture.clock.advance(by: .seconds(5))
        expectError(await Self.poll(fixture.driver, device), "invalid_grant")
        #expect(fixture.provider.ledger.users.first?.families.first?.family.origin == .deviceCode)
    }

    @Test(arguments: ProviderProfile.withLoginPage)
    func `the device learns of a denial`(profile: ProviderProfile) async throws {
        let fixture = ProviderFixture(profile)
        let (device, user, _) = try await Self.start(fixture.driver)
        #expect(await Self.decide(fixture.driver, user, "deny", user: "").status == .ok)
        expectError(await Self.poll(fixture.driver, device), "access_denied")
        #expect(await Self.decide(fixture.driver, user, "approve").status == .badRequest)
    }

    @Test(arguments: [
        (299_999, "authorization_pending", 1002), (300_000, "expired_token", 11003), (300_001, "expired_token", 11003),
    ])
    func `a device code expires`(milliseconds: Int, error: String, subStatus: Int64) async throws {
        let fixture = ProviderFixture()
        let (device, user, _) = try await Self.start(fixture.driver)
        fixture.clock.advance(by: .milliseconds(milliseconds))
        expectError(await Self.poll(fixture.driver, device), error, subStatus: subStatus)
        let works = error == "authorization_pending"
        #expect((await Self.decide(fixture.driver, user, "approve").status == .ok) == works)
    }

    @Test(arguments: [(4_999, "slow_down"), (5_000, "authorization_pending"), (5_001, "authorization_pending")])
    func `a poll before its interval is over is slowed down`(milliseconds: Int, error: String) async throws {
        let fixture = ProviderFixture(.rfc)
        let (device, _, _) = try await Self.start(fixture.driver)
        expectError(await Self.poll(fixture.driver, device), "authorization_pending")
        fixture.clock.advance(by: .milliseconds(milliseconds))
        expectError(await Self.poll(fixture.driver, device), error)
    }

    @Test(arguments: [(9_999, "slow_down"), (10_000, "authorization_pending")])
    func `slow_down makes the interval five seconds longer`(milliseconds: Int, error: String) async throws {
        let fixture = ProviderFixture(.rfc)
        let (device, _, _) = try await Self.start(fixture.driver)
        _ = await Self.poll(fixture.driver, device)
        expectError(await Self.poll(fixture.driver, device), "slow_down")
        fixture.clock.advance(by: .milliseconds(milliseconds))
        expectError(await Self.poll(fixture.driver, device), error)
    }

    @Test func `TIDAL does not check the interval of polls by default`() async throws {
        let fixture = ProviderFixture()
        let (device, _, _) = try await Self.start(fixture.driver)
        for _ in 0..<2 { expectError(await Self.poll(fixture.driver, device), "authorization_pending") }
        fixture.provider.configure { $0.slowsDownEagerPolls = true }
        expectError(await Self.poll(fixture.driver, device), "slow_down")
    }

    @Test func `a device code works for its own client only`() async throws {
        var fixture = ProviderFixture()
        let (device, user, _) = try await Self.start(fixture.driver)
        _ = await Self.decide(fixture.driver, user, "approve")
        fixture.driver.clientID = "other"
        expectError(await Self.poll(fixture.driver, device), "invalid_grant")
        expectError(await Self.poll(fixture.driver, "dc_unknown"), "invalid_grant")
        expectError(await Self.poll(fixture.driver, ""), "invalid_request")
    }

    @Test func `a user code is accepted in any spelling`() async throws {
        let fixture = ProviderFixture(.rfc)
        let spellings: [(String) -> String] = [
            { $0.lowercased() }, { $0.replacing("-", with: "") }, { " " + $0 + " " },
        ]
        for spelling in spellings {
            let (_, user, _) = try await Self.start(fixture.driver)
            #expect(await Self.decide(fixture.driver, spelling(user), "approve").status == .ok)
        }
    }

    // MARK: Pages

    @Test(arguments: ["/link", "/link/BCDF-GHJK"])
    func `the verification page has a form`(path: String) async throws {
        let page = await ProviderFixture(.rfc).driver.get(path)
        #expect(page.status == .ok)
        #expect(page.fields["Content-Security-Policy"]?.text.hasPrefix("default-src 'none'") == true)
        #expect(page.fields["Cache-Control"] == "no-store")
        #expect(ProviderForm(html: page.text)?.action == "/link")
        #expect(page.text.contains("value=\"BCDF-GHJK\"") == (path != "/link"))
    }

    @Test(arguments: [
        ("", "alice", "approve"), ("ZZZZZ", "alice", "approve"), ("<b>", "alice", "approve"), ("user", "", "approve"),
        ("user", "alice", ""), ("user", "alice", "perhaps"),
    ])
    func `an invalid form is shown again`(code: String, user: String, decision: String) async throws {
        let fixture = ProviderFixture()
        let (device, userCode, _) = try await Self.start(fixture.driver)
        let answer = await Self.decide(fixture.driver, code == "user" ? userCode : code, decision, user: user)
        #expect(answer.status == .badRequest)
        #expect(answer.text.contains("role=\"alert\""))
        #expect(ProviderForm(html: answer.text) != nil)
        #expect(!answer.text.contains("<b>"))
        expectError(await Self.poll(fixture.driver, device), "authorization_pending")
    }

    @Test func `a form at the address with the code needs no code`() async throws {
        let fixture = ProviderFixture()
        let (device, userCode, _) = try await Self.start(fixture.driver)
        let answer = await fixture.driver.post(
            "/link/" + userCode, [.init("user", "alice"), .init("decision", "approve")])
        #expect(answer.status == .ok)
        #expect(await Self.poll(fixture.driver, device).status == .ok)
    }
}
