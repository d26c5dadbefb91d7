import BrokerTesting
import DevelopmentProvider
import ExternalText
import HTTPCodec
import HTTPServer
import JSON
import Testing

@Suite struct `Authorization codes` {
    @Test(arguments: ProviderProfile.withLoginPage)
    func `a login gives a code that can be exchanged for tokens`(profile: ProviderProfile) async throws {
        let fixture = ProviderFixture(profile)
        let code = try #require(await fixture.driver.login())
        let response = await fixture.driver.redeem(code)
        #expect(response.status == .ok)
        #expect(response.fields["Cache-Control"] == "no-store")
        #expect(response.json?["token_type"]?.string == "Bearer")
        #expect(fixture.isActive(response))
    }

    @Test(arguments: ProviderProfile.withLoginPage)
    func `a code works once, and its reuse revokes its tokens`(profile: ProviderProfile) async throws {
        let fixture = ProviderFixture(profile)
        let code = try #require(await fixture.driver.login())
        let first = await fixture.driver.redeem(code)
        let refreshToken = try #require(first.json?["refresh_token"]?.text)
        expectError(await fixture.driver.redeem(code), "invalid_grant")
        #expect(!fixture.isActive(first))
        expectError(await fixture.driver.refresh(refreshToken), "invalid_grant")
        let family = try #require(fixture.provider.ledger.users.first?.families.first?.family)
        #expect(family.revocation?.cause == .codeReuse)
        #expect(fixture.provider.ledger.codeReuses == 1)
    }

    @Test(arguments: [(59_999, true), (60_000, false), (60_001, false)])
    func `a code is valid for a minute`(milliseconds: Int, works: Bool) async throws {
        let fixture = ProviderFixture()
        let code = try #require(await fixture.driver.login())
        fixture.clock.advance(by: .milliseconds(milliseconds))
        let response = await fixture.driver.redeem(code)
        #expect((response.status == .ok) == works)
        if !works { expectError(response, "invalid_grant") }
    }

    @Test func `a code works for its own client only`() async throws {
        var fixture = ProviderFixture()
        let code = try #require(await fixture.driver.login())
        fixture.driver.clientID = "other"
        expectError(await fixture.driver.redeem(code), "invalid_grant")
        fixture.driver.clientID = "app"
        #expect(await fixture.driver.redeem(code).status == .ok)
    }

    @Test(arguments: [
        "https://broker.test/login/callback/", "https://broker.test/login", "https://broker.test/login/callback?a=1",
        "HTTPS://broker.test/login/callback", "",
    ])
    func `a code requires the redirect URI that it was sent to`(uri: String) async throws {
        let fixture = ProviderFixture()
        let code = try #require(await fixture.driver.login())
        expectError(await fixture.driver.redeem(code, [.init("redirect_uri", uri)]), "invalid_grant")
    }

    @Test func `a redirect URI that was not sent need not be repeated`() async throws {
        let uri = "https://broker.test/login/callback"
        let fixture = ProviderFixture(clients: [ProviderClient("app", redirectURIs: [uri])])
        for repeated in ["", uri] {
            let code = try #require(await fixture.driver.login([.init("redirect_uri", "")]))
            #expect(await fixture.driver.redeem(code, [.init("redirect_uri", repeated)]).status == .ok)
        }
        let code = try #require(await fixture.driver.login([.init("redirect_uri", "")]))
        expectError(await fixture.driver.redeem(code, [.init("redirect_uri", uri + "/")]), "invalid_grant")
    }

    @Test(arguments: ["", "nonsense", "ac_", "AC_AAAA"])
    func `an unknown code is refused`(code: String) async {
        let fixture = ProviderFixture()
        expectError(await fixture.driver.redeem(code), code.isEmpty ? "invalid_request" : "invalid_grant")
    }

    // MARK: PKCE

    // Challenges of 42, 43, 128 and 129 times "a", computed with another program.
    @Test(arguments: [
        (42, "elOGB_2quSlplZKfRRVlu7gULhhEEXMiqv0rPXawGv8", false),
        (43, "ZtNPunH49FD35FWYhT5Tv8I7vRKQJ8uxMaL0_9eHjNA", true),
        (128, "aDbPE7rEAOkQUHHNavRwhN-srU5eMCyUv-0k4BOvtz4", true),
        (129, "wSywJKLlVRzKDgj86PHF4xRVXMP-9jKe6ZSj23UhZq4", false),
    ])
    func `a verifier has 43 to 128 characters`(count: Int, challenge: String, works: Bool) async throws {
        let fixture = ProviderFixture()
        let code = try #require(await fixture.driver.login([.init("code_challenge", challenge)]))
        let verifier = String(repeating: "a", count: count)
        let response = await fixture.driver.redeem(code, [.init("code_verifier", verifier)])
        #expect((response.status == .ok) == works)
        if !works { expectError(response, "invalid_grant") }
    }

    // K34
    @Test(arguments: [
        "", "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXK", "dBjftJeZ4CVP+mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
        ProviderDriver.challenge,
    ])
    func `a wrong verifier is refused, and the right one still works`(verifier: String) async throws {
        let fixture = ProviderFixture()
        let code = try #require(await fixture.driver.login())
        expectError(await fixture.driver.redeem(code, [.init("code_verifier", verifier)]), "invalid_grant")
        #expect(await fixture.driver.redeem(code).status == .ok)
    }

    @Test func `a verifier without a challenge is refused`() async throws {
        let fixture = ProviderFixture { $0.requiresProofKey = false }
        let without: [FormEncoding.Pair] = [.init("code_challenge", ""), .init("code_challenge_method", "")]
        let code = try #require(await fixture.driver.login(without))
        expectError(await fixture.driver.redeem(code), "invalid_grant")
        #expect(await fixture.driver.redeem(code, [.init("code_verifier", "")]).status == .ok)
    }
}
