import BrokerCore
import ExternalText

/// The error of an `OAuthClient`. Its texts are for people and contain no secrets.
public enum OAuthClientError: Error, Sendable, Equatable {
    /// The tokens cannot be used as JWTs; the text says why. Only another provider or another version of this program
    /// helps.
    case internalError(String)
    /// No tokens are stored, or a forced refresh has no refresh token. The user must create or activate an account, or
    /// log in.
    case missingTokenContainer
    /// The user's session is lost. The user must log in again.
    case unauthenticated
    /// The provider does not accept the refresh token any more. The user must log in again.
    /// - Parameters:
    ///   - status: why; nil if the provider does not say.
    ///   - underlying: the error with the provider's own code.
    case invalidTokenRequest(status: TokenStatus?, underlying: AuthError)
    /// The provider does not know the account. The user must create another one.
    case unknownAccount
    /// Every other error, unchanged. The stored tokens are unchanged. `AuthError.retryAfter` says whether a retry helps.
    case serviceError(AuthError)

    /// Why a provider does not accept a refresh token.
    public enum TokenStatus: String, Sendable, CaseIterable {
        /// Its signature or its form is wrong, or the account is suspended.
        case invalid
        /// It is too old.
        case expired
        /// It was presented before, longer ago than the provider tolerates.
        case reused
        /// The user has logged out.
        case loggedOut = "logged_out"
        /// The provider takes its use for an attack.
        case fraudDetected = "fraud_detected"
    }

    /// The number of the kind of error, for reports: 11000 to 11003 and 11005 as in DuckDuckGo's Auth, 11200 for
    /// `serviceError`.
    public var number: Int {
        switch self {
        case .internalError: 11000
        case .missingTokenContainer: 11001
        case .unauthenticated: 11002
        case .invalidTokenRequest: 11003
        case .unknownAccount: 11005
        case .serviceError: 11200
        }
    }

    init(_ error: AuthError) {
        switch error.code {
        case .missingTokenContainer: self = .missingTokenContainer
        case .authorizationError: self = .unauthenticated
        case .invalidTokenRequest:
            let status = error.providerErrorCode.flatMap { code in
                TokenStatus.allCases.first { WireText($0.rawValue) == WireText(code) }
            }
            self = .invalidTokenRequest(status: status, underlying: error)
        case .unknownAccount: self = .unknownAccount
        default: self = .serviceError(error)
        }
    }

    init(_ error: TokenClaimsError) { self = .internalError(error.description) }
}

extension OAuthClientError: CustomStringConvertible {
    /// The kind of error, and what is known beside it.
    public var description: String {
        switch self {
        case .internalError(let reason): "internalError: \(reason)"
        case .missingTokenContainer: "missingTokenContainer: No tokens are stored."
        case .unauthenticated: "unauthenticated: The user must log in again."
        case .invalidTokenRequest(let status, _):
            "invalidTokenRequest: The provider does not accept the refresh token any more"
                + (status.map { " (\($0.rawValue))." } ?? ".")
        case .unknownAccount: "unknownAccount: The provider does not know the account."
        case .serviceError(let error): error.description
        }
    }
}
