import BrokerCore
import HTTPCodec

/// The error of an operation. Its texts are for people and contain no secrets.
///
/// Compare `code` to decide what to do; later versions may add codes, so handle unknown ones like `unexpectedError`.
public struct AuthError: Error, Sendable, Equatable {
    /// The kind of an error.
    public struct Code: Sendable, Hashable, CustomStringConvertible {
        /// The name of the code, such as `networkError`.
        public let description: String

        private init(_ description: String) { self.description = description }

        /// The user did not log in or did not consent. Only a new login helps.
        public static let authorizationError = Code("authorizationError")
        /// The provider's response has no usable token. The stored credentials are unchanged. Requesting credentials again
        /// may help; a login must be begun anew.
        public static let tokenResponseError = Code("tokenResponseError")
        /// The provider refused for a reason that says nothing about the user's session. Retrying does not help until the
        /// provider or the configuration changes; a login must be begun anew.
        public static let unexpectedError = Code("unexpectedError")
        /// The operation cannot succeed now. Retrying after `retryAfter` may help.
        public static let retryableError = Code("retryableError")
        /// The provider could not be reached or did not respond. Retrying after `retryAfter` may help.
        public static let networkError = Code("networkError")
        /// The provider does not grant credentials to this client, or another provider is configured than the one that
        /// granted the user's credentials. Only another configuration helps, or in the second case a new login or a logout.
        public static let illegalConfiguration = Code("illegalConfiguration")
        /// A parameter cannot be used, or the call refers to a login that does not exist. Only a different call helps.
        public static let illegalArgument = Code("illegalArgument")
        /// No credentials of a user are stored, and the provider has no lower level or the call wants no lower one; or a forced
        /// refresh has no refresh token. Only a login helps. `sessionEnd` says how a session has ended that was there before.
        public static let missingTokenContainer = Code("missingTokenContainer")
        /// The provider does not accept the refresh token any more; the user's session has ended. Only a login helps.
        public static let invalidTokenRequest = Code("invalidTokenRequest")
        /// The provider does not know the account; the user's session has ended. Only another account helps.
        public static let unknownAccount = Code("unknownAccount")
        /// No user is logged in, or the login has no device key, so no other app can be let in. Only a login helps, with
        /// `App2AppOptions.isEnabled`.
        public static let unauthenticated = Code("unauthenticated")
        /// The system did not open a link in the app that it belongs to. Nothing was told to that app.
        public static let linkNotOpened = Code("linkNotOpened")
        /// No biometric key is set up, or the device or the provider does not know it any more. Only a login by other means and
        /// `AuthClient.enableBiometric` help.
        public static let biometricNotEnabled = Code("biometricNotEnabled")
        /// The user has cancelled, or the device has not recognised the user. A retry may help.
        public static let biometricRefused = Code("biometricRefused")
        /// The device's store of keys has failed, or what it returned is no key or no signature. `message` says what.
        public static let biometricUnavailable = Code("biometricUnavailable")
        /// The provider's certificate, host name, key or TLS version was not accepted. Nothing was sent to the provider.
        /// Retrying helps only if the cause is in the network, such as a proxy that intercepts TLS.
        public static let providerUntrusted = Code("providerUntrusted")
        /// The store does not answer. Retrying may help.
        public static let storageUnavailable = Code("storageUnavailable")
        /// The store cannot be used: another process uses it, its key is missing, a record cannot be decrypted, or the
        /// environment was closed. `message` says what to examine. Retrying may then help, except after `close`.
        public static let storageUnusable = Code("storageUnusable")
    }

    /// What kind of error this is.
    public let code: Code
    /// What happened, in English.
    public let message: String
    /// The provider's `error` or `sub_status`; nil if it sent none.
    public let providerErrorCode: String?
    /// The least time to wait before a retry; nil if only something else than waiting helps.
    public let retryAfter: Duration?

    /// How the user's session has ended; nil if that is not the reason, and after a logout.
    public let sessionEnd: SessionEnd?

    /// Creates an error, for your own implementation of `CredentialsProvider`.
    public init(
        _ code: Code, message: String, providerErrorCode: String? = nil, retryAfter: Duration? = nil,
        sessionEnd: SessionEnd? = nil
    ) {
        self.sessionEnd = sessionEnd
        self.code = code
        self.message = message
        self.providerErrorCode = providerErrorCode
        self.retryAfter = retryAfter
    }

    init(_ error: BrokerError) {
        let code = Self.code(of: error)
        let sessionEnd = error.session.map { SessionEnd($0) }
        self.init(
            code, message: error.detail + (sessionEnd.map { " " + $0.sentence } ?? ""),
            providerErrorCode: [.storageUnavailable, .storageUnusable].contains(code) ? nil : error.errorCode,
            retryAfter: [.retryableError, .networkError, .storageUnavailable].contains(code)
                ? .seconds(error.retryAfter ?? 1) : nil,
            sessionEnd: sessionEnd)
    }

    private static func code(of error: BrokerError) -> Code {
        switch error.code {
        case .authorizationError: .authorizationError
        case .tokenResponseError: .tokenResponseError
        case .unexpectedError: .unexpectedError
        case .retryableError: .retryableError
        case .networkError: .networkError
        case .illegalConfiguration: .illegalConfiguration
        case .providerUntrusted: .providerUntrusted
        case .levelNotAvailable where error.isSessionKept: .illegalConfiguration
        case .missingTokenContainer, .levelNotAvailable: .missingTokenContainer
        case .invalidTokenRequest: .invalidTokenRequest
        case .unknownAccount: .unknownAccount
        case .unauthenticated: .unauthenticated
        case .storageUnavailable: .storageUnavailable
        case .internalError: .storageUnusable
        default: error.code.status.code >= 500 ? .unexpectedError : .illegalArgument
        }
    }
}

extension AuthError: CustomStringConvertible {
    /// The code, the message and the provider's error code.
    public var description: String {
        "\(code): \(message)" + (providerErrorCode.map { " (\($0))" } ?? "")
    }
}
