import BrokerTesting
import DevelopmentProvider
import ExternalText
import HTTPCodec
import JSON
import Testing

@Suite struct `A provider over HTTPS` {
    /// Past the lifetime of every access token, for both sides.
    private static func expire(_ all: EndToEnd) {
        all.time.advance(by: .seconds(14_400))
        all.controls.expire(.accessTokens)
        all.time.forgetSleeps()
    }

    // Without pins of their own, tenants of TIDAL have those of TIDAL's servers.
    @Test(
        arguments: [
            (.tidal, ["good"]), (.tidal, ["backup", "good"]), (.rfc, []), (.rfc, ["good"]), (.rfc, ["intermediate"]),
        ] as [(ProviderProfile, [String])])
    func `logs in and refreshes with and without pins`(profile: ProviderProfile, pinned: [String]) async throws {
        var pins: [String] = []
        for name in pinned { pins.append(try await TLSTestCertificates.pin(of: name)) }
        try await EndToEnd.run(profile, rotation: .rotate(grace: .zero), pins: pins) { all async throws in
            #expect(all.controls.configuration.baseURL.description.hasPrefix("https://localhost:"))
            #expect(try await all.broker.logIn().status == 200)
            Self.expire(all)
            let answer = try await all.token()
            #expect(answer.status == 200)
            #expect(answer.json["level"]?.string == "user")
            let token = try #require(answer.json["token"]?.text)
            #expect(all.controls.introspect(accessToken: token)?.user == EndToEnd.user)
            #expect(all.requests(.refreshToken).count == 1)
        }
    }

    @Test func `gets no code and no refresh token where its key is not among the pins`() async throws {
        let pins = [try await TLSTestCertificates.pin(of: "backup")]
        try await EndToEnd.run(.tidal, pins: pins) { all async throws in
            let answer = try await all.broker.logIn()
            #expect(answer.status != 200)
            #expect(all.requests(.authorizationCode).isEmpty)
            #expect(try await all.token().json["level"]?.string != "user")
        }
    }
}
