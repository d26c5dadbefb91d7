import Cryptography
import ExternalText
import GroundTesting
import OAuth
import Testing

@Suite struct `Provider presets` {
    @Test func `are found by the names of the contract`() {
        #expect(ProviderPreset.named("tidal") == .tidal)
        #expect(ProviderPreset.named("oidc") == .oidc)
        #expect(ProviderPreset.named("spotify") == .spotify)
        #expect(ProviderPreset.named("authgear") == .authgear)
        #expect(ProviderPreset.named("duckduckgo") == .duckduckgo)
        #expect(ProviderPreset.named("TIDAL") == nil)
        #expect(ProviderPreset.named("") == nil)
    }

    @Test func `tidal has the values of the design`() {
        #expect(ProviderPreset.tidal.loginServiceBaseURI == "https://login.tidal.com")
        #expect(ProviderPreset.tidal.authServiceBaseURI == "https://auth.tidal.com/v1")
        #expect(ProviderPreset.tidal.clientAuthentication == .clientSecretPost)
        let endpoints = ProviderPreset.tidal.endpoints
        #expect(endpoints.authorization == AddressTemplate("{login_service_base_uri}/authorize"))
        #expect(endpoints.token == AddressTemplate("{auth_service_base_uri}/oauth2/token"))
        #expect(endpoints.deviceAuthorization == AddressTemplate("{auth_service_base_uri}/oauth2/device_authorization"))
        #expect(ProviderPreset.tidal.upgradeGrant == "update_client")
    }

    @Test func `spotify has one address for all clients`() {
        let spotify = ProviderPreset.spotify
        #expect(spotify.endpoints.authorization == AddressTemplate("https://accounts.spotify.com/authorize"))
        #expect(spotify.endpoints.token == AddressTemplate("https://accounts.spotify.com/api/token"))
        #expect(spotify.loginServiceBaseURI == nil && spotify.authServiceBaseURI == nil)
        #expect(spotify.clientAuthentication == .clientSecretBasic)
        #expect(spotify.languageParameter == nil && spotify.emailParameter == nil)
    }

    @Test func `authgear is found by its issuer`() {
        let authgear = ProviderPreset.authgear
        #expect(authgear.endpoints.authorization == nil && authgear.endpoints.token == nil)
        #expect(authgear.loginServiceBaseURI == nil && authgear.authServiceBaseURI == nil)
        #expect(authgear.clientAuthentication == .clientSecretPost)
    }

    @Test func `only tidal has an upgrade and a device login of its own`() {
        for preset in ProviderPreset.seeds where preset != .tidal {
            #expect(preset.upgradeGrant == nil)
            #expect(preset.endpoints.deviceAuthorization == nil)
            #expect(!preset.sendsClientUniqueKey && !preset.shape.repeatsScopes)
        }
    }

    @Test func `a preset ends a session for an invalid grant, or for what its provider says in its place`() {
        for preset in ProviderPreset.seeds {
            let pairs = preset.sessionEndingAnswers.map { "\($0.status) \($0.error ?? "")" }
            switch preset {
            case .tidal: #expect(pairs.count == 6)
            case .duckduckgo: #expect(pairs == ["400 invalid_token_request", "400 unknown_account"])
            default: #expect(pairs == ["400 invalid_grant", "401 invalid_grant"], "\(pairs)")
            }
            #expect(preset.configurationErrors.isEmpty == (preset == .tidal))
            #expect(preset.refreshLeadTime == (preset == .duckduckgo ? .seconds(45) : nil))
        }
    }

    @Test func `duckduckgo has the paths of its service, public clients, and users only`() {
        let duckduckgo = ProviderPreset.duckduckgo
        #expect(duckduckgo.authServiceBaseURI == "https://quack.duckduckgo.com")
        #expect(duckduckgo.loginServiceBaseURI == nil)
        let endpoints = duckduckgo.endpoints
        #expect(
            [
                endpoints.authorization, endpoints.token, endpoints.keys, endpoints.accountCreation,
                endpoints.activation,
                endpoints.logout,
            ].map { $0?.filled { _ in "" } } == [
                "/api/auth/v2/authorize", "/api/auth/v2/token", "/api/auth/v2/.well-known/jwks.json",
                "/api/auth/v2/account/create", "/api/auth/v2/login", "/api/auth/v2/logout",
            ])
        #expect(duckduckgo.clientAuthentication == .none)
        #expect(duckduckgo.defaultScopes.values == ["privacypro"])
        #expect(duckduckgo.levels == [.user])
        #expect(duckduckgo.prefersTokenExpiry)
        for preset in ProviderPreset.seeds where preset != .duckduckgo {
            #expect(preset.levels == Set(CredentialsLevel.allCases) && preset.accounts == nil)
            #expect(preset.tokenRequestFormat == .form && !preset.prefersTokenExpiry)
        }
    }

    @Test(
        arguments: [
            (nil, "invalid_token_request"), (-1, "invalid_token_request"), (0, "invalid"), (1, "expired"),
            (2, "reused"),
            (3, "logged_out"), (4, "fraud_detected"), (5, "invalid_token_request"),
        ] as [(Int?, String)])
    func `duckduckgo tells by a number why a refresh token is refused`(number: Int?, shown: String) {
        let member = number.map { #", "error_code": \#($0)"# } ?? ""
        let answer = TokenErrorResponse(
            body: Array(#"{"error": "invalid_token_request"\#(member)}"#.utf8), answering: .none)
        #expect(ProviderPreset.duckduckgo.shownCode(of: answer) == shown)
        #expect(ProviderPreset.oidc.shownCode(of: answer) == "invalid_token_request")
    }

    @Test(arguments: [(5, 20), (10, 20), (20, 20), (21, 21)])
    func `a token request may take as long as the preset or the configuration says`(configured: Int, longest: Int) {
        #expect(ProviderPreset.duckduckgo.longestTokenRequest(atLeast: .seconds(configured)) == .seconds(longest))
        #expect(ProviderPreset.tidal.longestTokenRequest(atLeast: .seconds(configured)) == .seconds(configured))
    }

    @Test func `every pin is the SHA-256 digest of a key`() {
        for pin in ProviderPreset.seeds.flatMap(\.pinnedCertificates) {
            #expect(pin.hasPrefix("sha256/"))
            #expect(Base64.decode(String(pin.dropFirst("sha256/".count)))?.count == SHA256.digestCount)
        }
        #expect(ProviderPreset.tidal.pinnedCertificates.count == 4)
    }

    @Test func `a token of which nothing is known lives an hour where it can be renewed, else until it is refused`() {
        for preset in ProviderPreset.seeds { #expect(preset.defaultLifetime == nil) }
        #expect(TokenLifetime.assumed(canBeRenewed: true) == .limited(.seconds(3600)))
        #expect(TokenLifetime.assumed(canBeRenewed: false) == .unlimited)
    }
}

@Suite struct `Authorization server` {
    private func server(_ answers: [RefusalPattern]?) -> AuthorizationServer {
        AuthorizationServer(
            preset: .oidc, authorizationEndpoint: "https://id.example/authorize",
            tokenEndpoint: "https://id.example/token", revocationEndpoint: nil, issuer: nil,
            announcesIssuerInResponses: false, clientAuthentication: .none, pinnedCertificates: [],
            sessionEndingAnswers: answers)
    }

    @Test func `takes the values of the preset unless others are given`() throws {
        let pattern = try #require(RefusalPattern(status: 400, error: nil))
        #expect(server(nil).sessionEndingAnswers == ProviderPreset.oidc.sessionEndingAnswers)
        #expect(server(nil).deviceAuthorizationEndpoint == nil)
        #expect(server([pattern]).sessionEndingAnswers == [pattern])
    }
}

@Suite struct `Refusal pattern` {
    @Test(arguments: [
        (Int.min, false), (-400, false), (0, false), (200, false), (302, false), (399, false), (400, true),
        (401, true), (403, true), (407, true), (408, false), (409, true), (428, true), (429, false), (430, true),
        (498, true), (499, true), (500, false), (503, false), (Int.max, false),
    ])
    func `has a status that is not transient`(status: Int, isAllowed: Bool) {
        #expect(RefusalPattern.isAllowed(status: status) == isAllowed)
        #expect((RefusalPattern(status: status, error: nil) != nil) == isAllowed)
        #expect((RefusalPattern(status: status, error: "invalid_grant") != nil) == isAllowed)
    }

    @Test(arguments: [
        ("invalid_grant", true), ("e", true), ("", false), ("not a code", false), ("<script>", false),
        (String(repeating: "e", count: 64), true), (String(repeating: "e", count: 65), false),
    ])
    func `has an error that a response can have`(error: String, isUsable: Bool) {
        #expect((RefusalPattern(status: 400, error: error) != nil) == isUsable)
    }

    /// Bodies, and whether a pattern without an error and one with `gone` match them.
    static let bodies: [(String, Bool, Bool)] = [
        ("", true, false), ("{}", true, false), (#"{"message":"no"}"#, true, false), (#"{"error":null}"#, true, false),
        (#" {"error_description":"gone"} "#, true, false), (#"{"error":"gone"}"#, false, true),
        (#"{"error":"Gone"}"#, false, false), (#"{"error":"other"}"#, false, false), (#"{"error":""}"#, false, false),
        (#"{"error":"not a code"}"#, false, false), (#"{"error":400}"#, false, false),
        (#"{"error":{"code":"gone"}}"#, false, false), (#"{"error":["gone"]}"#, false, false), (" ", false, false),
        ("null", false, false), ("[]", false, false), (#""gone""#, false, false), ("gone", false, false),
        ("error=gone", false, false), ("<html>400 Bad Request</html>", false, false), ("{", false, false),
        (#"{"error":"gone""#, false, false), (#"{"error":"gone","error":"gone"}"#, false, false),
        (#"{"error":"gone"}x"#, false, false),
    ]

    @Test(arguments: bodies)
    func `matches no body that cannot be read`(body: String, withoutError: Bool, gone: Bool) throws {
        let answer = TokenErrorResponse(body: Array(body.utf8), answering: .none)
        let nameless = try #require(RefusalPattern(status: 400, error: nil))
        let named = try #require(RefusalPattern(status: 400, error: "gone"))
        #expect(nameless.matches(status: 400, answer) == withoutError)
        #expect(named.matches(status: 400, answer) == gone)
        for status in [200, 399, 401, 500] {
            #expect(!nameless.matches(status: status, answer))
            #expect(!named.matches(status: status, answer))
        }
    }
}
