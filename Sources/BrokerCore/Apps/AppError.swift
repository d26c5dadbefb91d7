package import HTTPCodec

/// An error as an app gets it (RFC 6749 §5.2 and §4.1.2.1).
package struct AppError: Error, Sendable, Equatable {
    package enum Code: String, Sendable, CaseIterable {
        case invalidRequest = "invalid_request"
        case invalidClient = "invalid_client"
        case invalidGrant = "invalid_grant"
        case unauthorizedClient = "unauthorized_client"
        case unsupportedGrantType = "unsupported_grant_type"
        case unsupportedResponseType = "unsupported_response_type"
        case accessDenied = "access_denied"
        case serverError = "server_error"
        case temporarilyUnavailable = "temporarily_unavailable"
        case rateLimited = "x_rate_limited"

        fileprivate var status: Status {
            switch self {
            case .invalidRequest, .invalidGrant, .unauthorizedClient, .unsupportedGrantType, .unsupportedResponseType,
                .accessDenied:
                .badRequest
            case .invalidClient: .unauthorized
            case .serverError: .internalServerError
            case .temporarilyUnavailable: .serviceUnavailable
            case .rateLimited: .tooManyRequests
            }
        }
    }

    package let code: Code
    /// ASCII without quotation marks and backslashes (RFC 6749 §5.2).
    package let description: String
    package let status: Status
    /// Whole seconds after which a retry makes sense.
    package let retryAfter: Int?
    /// For status 405: the methods that the path takes.
    package let allowedMethods: [Method]

    /// - Parameter status: nil for the code's usual one.
    package init(
        _ code: Code, _ description: String, status: Status? = nil, retryAfter: Int? = nil,
        allowedMethods: [Method] = []
    ) {
        self.code = code
        self.description = description
        self.status = status ?? code.status
        self.retryAfter = retryAfter ?? (self.status == .serviceUnavailable || code == .rateLimited ? 1 : nil)
        self.allowedMethods = allowedMethods
    }

    /// The failure to read the credentials of a session, or of a login.
    ///
    /// Only what says that the login is gone ends what the app has (RFC 6749 §5.2, `invalid_grant`). The rest is a failure of the
    /// provider, the store or the configuration, after which the app tries again.
    package init(_ error: BrokerError) {
        switch error.code {
        // An operator must mend the configuration, and the session is good then.
        case .levelNotAvailable where error.isSessionKept:
            self.init(.temporarilyUnavailable, Self.plain(error.detail), retryAfter: error.retryAfter ?? 30)
        case .levelNotAvailable, .missingTokenContainer, .invalidTokenRequest, .unknownAccount, .unauthenticated:
            self.init(.invalidGrant, "The user is not logged in any more.")
        case .authorizationError: self.init(.accessDenied, "The login did not succeed.")
        case .internalError: self.init(.serverError, "The broker has failed.")
        case .invalidRequest, .conflict, .gone, .forbidden:
            self.init(.invalidRequest, Self.plain(error.detail))
        case .notFound, .methodNotAllowed, .preconditionFailed, .payloadTooLarge, .unsupportedMediaType:
            self.init(
                .invalidRequest, Self.plain(error.detail), status: error.code.status,
                allowedMethods: error.allowedMethods)
        case .unauthorized: self.init(.invalidClient, Self.plain(error.detail))
        case .illegalArgument: self.init(.invalidRequest, Self.plain(error.detail))
        case .tooManyRequests: self.init(.rateLimited, Self.plain(error.detail), retryAfter: error.retryAfter)
        case .retryableError, .networkError, .storageUnavailable:
            self.init(.temporarilyUnavailable, Self.plain(error.detail), retryAfter: error.retryAfter)
        case .tokenResponseError, .unexpectedError, .illegalConfiguration, .providerUntrusted:
            // An operator or the provider must mend something, and the session is good then.
            self.init(.temporarilyUnavailable, Self.plain(error.detail), retryAfter: error.retryAfter ?? 30)
        }
    }

    /// RFC 6749 §5.2: printable ASCII without quotation mark and backslash.
    package static func plain(_ text: String) -> String {
        String(
            decoding: text.utf8.map { byte in
                byte < 0x20 || byte > 0x7e || byte == UInt8(ascii: "\"") || byte == UInt8(ascii: "\\")
                    ? UInt8(ascii: "'") : byte
            }, as: UTF8.self)
    }

    package static let unknownClient = AppError(.invalidClient, "The client is unknown, or its secret is wrong.")
    /// The client that an app asks to let in.
    package static let unknownTarget = AppError(.invalidClient, "invalid client ID", status: .badRequest)
    package static let invalidCode = AppError(.invalidGrant, "invalid authorization code")
    package static let invalidRefreshToken = AppError(.invalidGrant, "invalid refresh token")
}
