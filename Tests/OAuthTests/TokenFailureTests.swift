import GroundTesting
import OAuth
import Testing

@Suite struct `Token failure` {
    static let errors: [String?] = [
        "unauthorized_client", "invalid_grant", "invalid_request", "access_denied", "invalid_client", "invalid_scope",
        "unsupported_grant_type", "server_error", "temporarily_unavailable", "expired_token", "slow_down",
        "authorization_pending", "INVALID_GRANT", "invalid_grant ", "11101", "", nil,
    ]

    private func failure(
        _ grant: TokenRequest.Grant, _ status: Int, _ error: String?, _ patterns: [RefusalPattern] = [],
        of preset: ProviderPreset = .tidal
    ) -> TokenFailure {
        TokenFailure(
            grant: grant, status: status, answer: TokenErrorResponse(error: error, subStatus: nil),
            sessionEndingAnswers: preset.sessionEndingAnswers + patterns,
            sessionEndingErrors: preset.sessionEndingErrors, configurationErrors: preset.configurationErrors)
    }

    /// Whether a refusal of a refresh or of client credentials will pass, unless it is listed as the end of a session.
    private static func isPassing(_ status: Int, _ error: String?) -> Bool {
        [408, 425, 429].contains(status) || ["server_error", "temporarily_unavailable", "slow_down"].contains(error)
    }

    /// Every pattern that may end a session.
    static let everyPattern: [RefusalPattern] = (100...999).flatMap { status in
        errors.compactMap { RefusalPattern(status: status, error: $0) }
    }

    /// The refusals that end a session at TIDAL. No other refusal does.
    static let endings: Set<String> = [
        "400 unauthorized_client", "400 invalid_grant", "400 invalid_request", "401 access_denied",
        "401 invalid_client",
        "401 invalid_grant",
    ]

    // T33 T34 H080
    @Test(arguments: [400, 401, 402, 403, 404, 405, 408, 409, 410, 418, 422, 424, 425, 426, 451, 499])
    func `only the listed refusals of a refresh end the session`(status: Int) {
        for error in Self.errors {
            let isListed = Self.endings.contains("\(status) \(error ?? "")")
            #expect(
                failure(.refreshToken, status, error)
                    == (isListed ? .endsSession : Self.isPassing(status, error) ? .rateLimited : .unexpected),
                "\(status) \(error ?? "nil")")
        }
    }

    // Q52
    @Test(
        arguments: ProviderPreset.seeds.filter { $0 != .tidal && $0 != .duckduckgo },
        [200, 204, 299, 400, 401, 402, 403, 404, 408, 409, 422, 425, 499])
    func `at other providers only an invalid grant ends the session, and client faults are configuration errors`(
        preset: ProviderPreset, status: Int
    ) {
        let faults = ["invalid_client", "unauthorized_client", "unsupported_grant_type"]
        for error in Self.errors {
            let expected: TokenFailure =
                if status >= 400, Self.isPassing(status, error) {
                    .rateLimited
                } else if error == "invalid_grant" {
                    .endsSession
                } else if let error, faults.contains(error) {
                    .illegalConfiguration
                } else {
                    status < 300 ? .unusable : .unexpected
                }
            #expect(
                failure(.refreshToken, status, error, of: preset) == expected, "\(status) \(error ?? "nil")")
        }
    }

    // D10 D14
    @Test(arguments: [400, 401, 403, 404, 408, 422, 499])
    func `at duckduckgo a token that is not accepted and an unknown account end the session`(status: Int) {
        let faults = ["invalid_client", "unauthorized_client", "unsupported_grant_type"]
        for error in Self.errors + ["invalid_token_request", "unknown_account"] {
            let ends = status == 400 && ["invalid_token_request", "unknown_account"].contains(error)
            let expected: TokenFailure =
                ends
                ? .endsSession
                : Self.isPassing(status, error)
                    ? .rateLimited : faults.contains(error ?? "") ? .illegalConfiguration : .unexpected
            #expect(failure(.refreshToken, status, error, of: .duckduckgo) == expected, "\(status) \(error ?? "nil")")
        }
    }

    @Test func `a refusal that a tenant lists ends the session even if it is about the client`() throws {
        let pattern = try #require(RefusalPattern(status: 401, error: "invalid_client"))
        #expect(failure(.refreshToken, 401, "invalid_client", [pattern], of: .oidc) == .endsSession)
        #expect(failure(.refreshToken, 400, "invalid_client", [pattern], of: .oidc) == .illegalConfiguration)
    }

    @Test(
        arguments: [
            (.sessionEnded, .endsSession, .endsSession), (.configuration, .illegalConfiguration, .illegalConfiguration),
            (.transient, .rateLimited, .unusable), (.slowDown, .rateLimited, .unusable),
            (.pending, .unexpected, .unusable),
        ] as [(AnswerShape.Meaning, TokenFailure, TokenFailure)])
    func `what a rule of the profile says of a refused refresh counts before every list`(
        meaning: AnswerShape.Meaning, refused: TokenFailure, inSuccess: TokenFailure
    ) {
        for error in Self.errors {
            let answer = TokenErrorResponse(TokenErrorResponse(error: error, subStatus: nil), meaning: meaning)
            let names = Self.errors.compactMap { $0 }
            for (patterns, ending, faults) in [
                ([], [], []), (ProviderPreset.tidal.sessionEndingAnswers, [], []), (Self.everyPattern, names, names),
                ([], ["x"], ["y"]), ([], names, []), ([], [], names),
            ] as [([RefusalPattern], [String], [String])] {
                for (status, expected) in [
                    (400, refused), (401, refused), (403, refused), (422, refused), (200, inSuccess), (204, inSuccess),
                    // These decide nothing, whatever a body says.
                    (408, .rateLimited), (425, .rateLimited), (429, .rateLimited), (500, .retryable), (503, .retryable),
                ] as [(Int, TokenFailure)] {
                    let failure = TokenFailure(
                        grant: .refreshToken, status: status, answer: answer, sessionEndingAnswers: patterns,
                        sessionEndingErrors: ending, configurationErrors: faults)
                    #expect(failure == expected, "\(status) \(error ?? "nil")")
                }
            }
        }
    }

    // T11
    @Test(arguments: [400, 401, 403, 404, 408, 422, 428, 430, 499])
    func `any other 4xx is unexpected for both kinds of code and a configuration error for client credentials`(
        status: Int
    ) {
        for error in Self.errors {
            #expect(failure(.authorizationCode, status, error) == .unexpected)
            #expect(failure(.deviceCode, status, error) == .unexpected)
            #expect(failure(.accountCreation, status, error) == .unexpected)
            #expect(
                failure(.clientCredentials, status, error)
                    == (Self.isPassing(status, error) ? .rateLimited : .illegalConfiguration))
        }
    }

    // T12 T29 K08 H080 Q53
    @Test(arguments: TokenRequest.Grant.allCases, [500, 501, 502, 503, 504, 507, 511, 599, 600, 999])
    func `a 5xx is retryable, whatever its body says`(grant: TokenRequest.Grant, status: Int) {
        for error in Self.errors {
            #expect(failure(grant, status, error, Self.everyPattern) == .retryable)
        }
    }

    // T32 K27
    @Test(arguments: TokenRequest.Grant.allCases.filter { $0 != .upgrade })
    func `a 429 is a rate limit, whatever its body says`(grant: TokenRequest.Grant) {
        for error in Self.errors {
            #expect(failure(grant, 429, error, Self.everyPattern) == .rateLimited)
        }
    }

    // T31
    @Test(
        arguments: TokenRequest.Grant.allCases.filter { $0 != .upgrade },
        [100, 101, 199, 200, 201, 204, 299, 300, 302, 304, 307, 399])
    func `a response that is neither a grant nor an error is unusable`(grant: TokenRequest.Grant, status: Int) {
        for error in Self.errors {
            #expect(failure(grant, status, error, Self.everyPattern) == .unusable)
        }
    }

    // T48 T49
    @Test(arguments: [100, 200, 204, 299, 302, 399, 400, 401, 403, 408, 422, 428, 429, 430, 499, 500, 503, 600, 999])
    func `an upgrade that fails is tried again, whatever the answer`(status: Int) {
        for error in Self.errors {
            #expect(failure(.upgrade, status, error, Self.everyPattern) == .retryable)
        }
    }

    @Test func `a refusal that the provider defines ends a session besides the listed ones`() throws {
        let patterns = [
            try #require(RefusalPattern(status: 400, error: nil)),
            try #require(RefusalPattern(status: 403, error: "session_revoked")),
        ]
        for (status, error, ends) in [
            (400, nil, true), (401, nil, false), (403, "session_revoked", true), (400, "session_revoked", false),
            (403, nil, false), (403, "invalid_grant", false), (400, "invalid_grant", true), (400, "slow_down", false),
        ] as [(Int, String?, Bool)] {
            let isPassing = Self.isPassing(status, error)
            #expect(
                failure(.refreshToken, status, error, patterns)
                    == (ends ? .endsSession : isPassing ? .rateLimited : .unexpected))
            #expect(failure(.authorizationCode, status, error, patterns) == .unexpected)
            #expect(failure(.deviceCode, status, error, patterns) == .unexpected)
            #expect(
                failure(.clientCredentials, status, error, patterns)
                    == (isPassing ? .rateLimited : .illegalConfiguration))
        }
    }

    @Test func `a body that cannot be read ends no session`() throws {
        let pattern = try #require(RefusalPattern(status: 400, error: nil))
        for (body, ends) in [("", true), ("{}", true), ("<html>400</html>", false), (#"{"error":7}"#, false)] {
            let failure = TokenFailure(
                grant: .refreshToken, status: 400, answer: TokenErrorResponse(body: Array(body.utf8), answering: .none),
                sessionEndingAnswers: [pattern], configurationErrors: [])
            #expect(failure == (ends ? .endsSession : .unexpected))
        }
    }
}
