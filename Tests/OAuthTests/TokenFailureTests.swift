import OAuth
import Testing

@Suite struct `Token failure` {
    static let errors: [String?] = [
        "unauthorized_client", "invalid_grant", "invalid_request", "access_denied", "invalid_client", "invalid_scope",
        "unsupported_grant_type", "server_error", "temporarily_unavailable", "expired_token", "slow_down",
        "authorization_pending", "INVALID_GRANT", "invalid_grant ", "11101", "", nil,
    ]

    /// What ends a session, and nothing else does.
    static let endings: Set<String> = [
        "400 unauthorized_client", "400 invalid_grant", "400 invalid_request", "401 access_denied",
        "401 invalid_client",
        "401 invalid_grant",
    ]

    @Test(arguments: [400, 401, 402, 403, 404, 405, 408, 409, 410, 418, 422, 451, 499])
    func `a refresh ends the session by the listed pairs only (T33, T34)`(status: Int) {
        for error in Self.errors {
            let isListed = Self.endings.contains("\(status) \(error ?? "")")
            #expect(
                TokenFailure(grant: .refreshToken, status: status, error: error)
                    == (isListed ? .endsSession : .unexpected), "\(status) \(error ?? "nil")")
        }
    }

    @Test(arguments: [400, 401, 403, 404, 408, 422, 428, 430, 499])
    func `another 4xx is unexpected for a code and a configuration fault for client credentials (T11)`(status: Int) {
        for error in Self.errors {
            #expect(TokenFailure(grant: .authorizationCode, status: status, error: error) == .unexpected)
            #expect(TokenFailure(grant: .clientCredentials, status: status, error: error) == .illegalConfiguration)
        }
    }

    @Test(arguments: TokenRequest.Grant.allCases, [500, 501, 502, 503, 504, 507, 511, 599, 600, 999])
    func `a 5xx is retryable, whatever its body says (T12, T29)`(grant: TokenRequest.Grant, status: Int) {
        for error in Self.errors {
            #expect(TokenFailure(grant: grant, status: status, error: error) == .retryable)
        }
    }

    @Test(arguments: TokenRequest.Grant.allCases)
    func `a 429 asks for patience, whatever its body says (T32)`(grant: TokenRequest.Grant) {
        for error in Self.errors {
            #expect(TokenFailure(grant: grant, status: 429, error: error) == .rateLimited)
        }
    }

    @Test(arguments: TokenRequest.Grant.allCases, [100, 101, 199, 200, 201, 204, 299, 300, 302, 304, 307, 399])
    func `what is neither a grant nor an error cannot be used (T31)`(grant: TokenRequest.Grant, status: Int) {
        for error in Self.errors {
            #expect(TokenFailure(grant: grant, status: status, error: error) == .unusable)
        }
    }
}
