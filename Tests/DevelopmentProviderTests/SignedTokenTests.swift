import BrokerTesting
import Cryptography
import DevelopmentProvider
import ExternalText
import HTTPCodec
import HTTPServer
import JOSE
import JSON
import Testing

@Suite struct `Signed tokens` {
    private static let algorithms: Set<SignatureAlgorithm> = Set(SignatureAlgorithm.allCases)

    private func keys(_ driver: ProviderDriver) async throws -> JSONWebKeySet {
        try JSONWebKeySet(parsing: await driver.get("/jwks").body)
    }

    private func verified(_ token: WireText?, _ driver: ProviderDriver) async throws -> VerifiedJWS {
        try CompactJWS(parsing: try #require(token), policy: JWSPolicy(algorithms: Self.algorithms))
            .verified(with: try await keys(driver))
    }

    private static func expectations(_ tokens: JSONValue, nonce: IDTokenExpectations.Nonce) -> IDTokenExpectations {
        var expectations = IDTokenExpectations(
            issuer: "http://127.0.0.1:8181", clientID: "app", algorithms: algorithms, nonce: nonce)
        expectations.accessToken = IDTokenExpectations.Companion(
            tokens["access_token"]?.string ?? "", requiresHash: true)
        return expectations
    }

    @Test(arguments: SignatureAlgorithm.allCases)
    func `an ID token is what OpenID Connect expects`(algorithm: SignatureAlgorithm) async throws {
        let fixture = ProviderFixture(.rfc) { $0.signingAlgorithm = algorithm }
        let driver = fixture.driver
        let code = try #require(await driver.login([.init("scope", "openid"), .init("nonce", "n-0S6_WzA2Mj")]))
        let tokens = try #require(await driver.redeem(code).json)
        let expectations = Self.expectations(tokens, nonce: .required("n-0S6_WzA2Mj"))
        let now = NumericDate(seconds: fixture.provider.now / 1000)
        let claims = try expectations.check(await verified(tokens["id_token"]?.string, driver), now: now)
        #expect(claims.subject == WireText(String(ProviderUser("alice").id)))
        let metadata = await driver.get("/.well-known/openid-configuration").json
        #expect(metadata?["id_token_signing_alg_values_supported"]?.array == [.string(WireText(algorithm.rawValue))])
        #expect(metadata?["jwks_uri"]?.string == "http://127.0.0.1:8181/jwks")
    }

    @Test func `an ID token of a refresh has no nonce`() async throws {
        let fixture = ProviderFixture(.rfc)
        let code = try #require(await fixture.driver.login([.init("scope", "openid"), .init("nonce", "n")]))
        let token = try #require(await fixture.driver.redeem(code).json?["refresh_token"]?.text)
        let tokens = try #require(await fixture.driver.refresh(token).json)
        let claims = try Self.expectations(tokens, nonce: .absent).check(
            await verified(tokens["id_token"]?.string, fixture.driver),
            now: NumericDate(seconds: fixture.provider.now / 1000))
        #expect(claims.members["auth_time"] == nil)
    }

    @Test(arguments: [(ProviderProfile.rfc, "r_usr"), (.tidal, "openid")])
    func `there is no ID token without the scope openid, and none at TIDAL`(
        profile: ProviderProfile, scope: String
    ) async throws {
        let tokens = try #require(await ProviderFixture(profile).driver.session(scope: scope))
        #expect(tokens["id_token"] == nil)
    }

    @Test func `access tokens are JWTs where the configuration says so`() async throws {
        let fixture = ProviderFixture(.rfc) { $0.accessTokenFormat = .jwt }
        let tokens = try #require(await fixture.driver.session(scope: "r_usr w_usr"))
        let token = try await verified(tokens["access_token"]?.string, fixture.driver)
        let claims = try token.claims()
        #expect(claims.members["scope"]?.string == "r_usr w_usr")
        #expect(claims.members["client_id"]?.string == "app")
        #expect(claims.expiry?.wholeSeconds == fixture.provider.now / 1000 + 3600)
        #expect(fixture.isActive(await fixture.driver.refresh(try #require(tokens["refresh_token"]?.text))))
    }

    // MARK: Keys

    @Test func `a key is published before it signs, and afterwards until the next rotation`() async throws {
        let fixture = ProviderFixture(.rfc)
        let driver = fixture.driver
        func signer() async throws -> String {
            let tokens = try #require(await driver.session(scope: "openid"))
            return try #require(try await verified(tokens["id_token"]?.string, driver).header.keyID).text
        }
        func published() async throws -> [String] { try await keys(driver).keys.compactMap { $0.keyID?.text } }
        let first = try await published()
        #expect(fixture.provider.keys.map(\.role) == ["active", "next"])
        #expect(try await signer() == first[0])
        #expect(await driver.control(.post, "/keys/rotate").status == .noContent)
        #expect(try await published() == first)
        #expect(fixture.provider.keys.map(\.role) == ["former", "active"])
        #expect(try await signer() == first[1])
        #expect(await driver.control(.post, "/keys/publish").status == .noContent)
        fixture.provider.publishNextKey()
        let second = try await published()
        #expect(second.count == 3)
        #expect(Array(second.prefix(2)) == first)
        let roles = await driver.control(.get, "/keys").json?["keys"]?.array?.compactMap { $0["role"]?.text }
        #expect(roles == ["former", "active", "next"])
        fixture.provider.rotateKeys()
        #expect(try await published() == Array(second.suffix(2)))
        #expect(try await signer() == second[2])
        // Without a next key, rotating signs with a key that a cached set does not have.
        fixture.provider.rotateKeys()
        #expect(try await published().first == second[2])
        #expect(try await !second.contains(signer()))
    }

    @Test func `keys stay when the provider is reset`() async throws {
        let fixture = ProviderFixture(.rfc)
        let before = try await keys(fixture.driver).keys.map(\.thumbprint)
        fixture.provider.reset()
        #expect(try await keys(fixture.driver).keys.map(\.thumbprint) == before)
    }

    @Test func `a key set may be cached for an hour, and can be made to fail`() async throws {
        let fixture = ProviderFixture(.rfc)
        #expect(await fixture.driver.get("/jwks").fields["Cache-Control"] == "max-age=3600")
        #expect(
            await fixture.driver.control(.post, "/faults", #"{"endpoint": "jwks", "status": 503}"#).status
                == .noContent)
        #expect(await fixture.driver.get("/jwks").status == .serviceUnavailable)
        #expect(await fixture.driver.get("/jwks").status == .ok)
        #expect(fixture.provider.counters.requests(.keys) == 3)
    }

    // MARK: Defects

    private enum Refusal: Equatable {
        case none
        case token(JWSError)
        case claims(ClaimsRejection)
    }

    /// What a relying party that follows OpenID Connect makes of an ID token.
    private func refusal(_ tokens: JSONValue, _ fixture: ProviderFixture) async throws -> Refusal {
        do throws(JWSError) {
            let keys: JSONWebKeySet
            do { keys = try await self.keys(fixture.driver) } catch { return .none }
            let token = try CompactJWS(
                parsing: tokens["id_token"]?.string ?? "", policy: JWSPolicy(algorithms: Self.algorithms)
            ).verified(with: keys)
            do throws(ClaimsRejection) {
                var expectations = Self.expectations(tokens, nonce: .required("n"))
                expectations.subject = WireText(String(ProviderUser("alice").id))
                _ = try expectations.check(token, now: NumericDate(seconds: fixture.provider.now / 1000))
                return .none
            } catch {
                return .claims(error)
            }
        } catch {
            return .token(error)
        }
    }

    @Test(arguments: [
        (TokenDefect.unpublishedKey, Refusal.token(.unknownKey)), (.signature, .token(.signature)),
        (.unsigned, .token(.unsecured)), (.expired, .claims(.expired)), (.issuedInFuture, .claims(.issuedInFuture)),
        (.issuer, .claims(.issuer)), (.audience, .claims(.audience)), (.subject, .claims(.subject)),
        (.nonce, .claims(.nonce)), (.accessTokenHash, .claims(.accessTokenHash)), (.opaque, .token(.malformed)),
    ])
    private func `a defect makes the next ID token one that must be refused`(
        defect: TokenDefect, expected: Refusal
    ) async throws {
        let fixture = ProviderFixture(.rfc)
        func log() async throws -> JSONValue {
            let code = try #require(await fixture.driver.login([.init("scope", "openid"), .init("nonce", "n")]))
            return try #require(await fixture.driver.redeem(code).json)
        }
        let fault = #"{"endpoint": "token", "token": "id", "defect": "\#(defect.rawValue)"}"#
        #expect(await fixture.driver.control(.post, "/faults", fault).status == .noContent)
        #expect(try await refusal(try await log(), fixture) == expected)
        #expect(try await refusal(try await log(), fixture) == .none)
    }

    @Test func `a defect is of one token only`() async throws {
        let fixture = ProviderFixture(.duckduckgo)
        fixture.provider.script(Fault(.token, defect: (.refresh, .scope)))
        let opened = try #require(fixture.provider.openSessions(users: ["alice"])?.first)
        let driver = AccountDriver(fixture.provider)
        let token = try #require(opened.refreshToken)
        let tokens = try #require(await driver.refresh(token).json)
        let keys = try JSONWebKeySet(parsing: await driver.get("/.well-known/jwks.json", []).body)
        func scope(_ name: String) throws -> WireText? {
            try CompactJWS(
                parsing: try #require(tokens[WireText(name)]?.string), policy: JWSPolicy(algorithms: [.es256])
            ).verified(with: keys).claims().members["scope"]?.string
        }
        #expect(try scope("access_token") == "privacypro")
        #expect(try scope("refresh_token") == "refresh-other")
    }

    @Test(arguments: [
        #"{"endpoint": "token", "token": "id"}"#, #"{"endpoint": "token", "defect": "other"}"#,
        #"{"endpoint": "token", "token": "other", "defect": "expired"}"#,
    ])
    func `a defect that is not exact is refused`(fault: String) async {
        #expect(await ProviderFixture(.rfc).driver.control(.post, "/faults", fault).status == .badRequest)
    }
}
