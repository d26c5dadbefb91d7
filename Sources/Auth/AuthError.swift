internal import BrokerCore
internal import HTTPCodec

/// What an operation failed with. The texts are for people and hold no secret.
///
/// `errorCode` is the provider's `error` or `sub_status`, where it named one. `retryAfter` is how long to wait at least
/// before the same is tried again.
public enum AuthError: Error, Sendable, Equatable {
    /// The user did not log in, or did not allow it. Only a new login helps.
    case authorizationError(String, errorCode: String?)
    /// The provider answered without a usable token. What is stored is as it was. Asking for credentials again may
    /// help; a login must be begun anew.
    case tokenResponseError(String, errorCode: String?)
    /// The provider refused for a reason that says nothing about the user's session. A retry does not help as long as
    /// the provider or the configuration stay as they are; a login must be begun anew.
    case unexpectedError(String, errorCode: String?)
    /// Something cannot be done now and may be later.
    case retryableError(String, errorCode: String?, retryAfter: Duration)
    /// The provider could not be reached or did not answer. Retrying may help.
    case networkError(String, retryAfter: Duration)
    /// The provider does not give this client credentials, or it is another one than the user's credentials are for. Only
    /// another configuration helps, or for the latter a new login or a logout.
    case illegalConfiguration(String, errorCode: String?)
    /// A parameter cannot be used, or what is asked for is not under way. Only another call helps.
    case illegalArgument(String)
    /// The provider's certificate, host name, pin or version of TLS does not fit. Nothing was sent to it. A retry does not help unless
    /// the network is to blame, such as a proxy that reads along.
    case providerUntrusted(String)
    /// The store does not answer. Retrying may help.
    case storageUnavailable(String)
    /// The store cannot be used: another process has it, its key is missing, a record does not open, the environment
    /// was closed. The text says what to look at; then the same can be tried again, except after `close`.
    case storageUnusable(String)

    init(_ error: BrokerError) {
        let retryAfter = Duration.seconds(error.retryAfter ?? 1)
        self =
            switch error.code {
            case .authorizationError: .authorizationError(error.detail, errorCode: error.errorCode)
            case .tokenResponseError: .tokenResponseError(error.detail, errorCode: error.errorCode)
            case .unexpectedError: .unexpectedError(error.detail, errorCode: error.errorCode)
            case .retryableError:
                .retryableError(error.detail, errorCode: error.errorCode, retryAfter: retryAfter)
            case .networkError: .networkError(error.detail, retryAfter: retryAfter)
            case .illegalConfiguration: .illegalConfiguration(error.detail, errorCode: error.errorCode)
            case .providerUntrusted: .providerUntrusted(error.detail)
            case .storageUnavailable: .storageUnavailable(error.detail)
            case .internalError: .storageUnusable(error.detail)
            default:
                error.code.status.code >= 500
                    ? .unexpectedError(error.detail, errorCode: error.errorCode) : .illegalArgument(error.detail)
            }
    }
}
