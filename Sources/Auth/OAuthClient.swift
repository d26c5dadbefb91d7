/// What `OAuthClient.getTokens(policy:)` does to have tokens.
public enum AuthTokensCachePolicy: String, Sendable, CaseIterable {
    /// Returns the stored tokens as they are, even expired ones, and asks the provider for nothing.
    case local
    /// Returns the stored tokens, refreshed if the access token expires within
    /// `AuthConfiguration.tokenExpiryBufferInterval`. If the access token is still valid and the refresh fails, the
    /// stored tokens are returned.
    case localValid
    /// Refreshes the stored tokens, whatever their age.
    case localForceRefresh
    /// As `localValid`; and where nothing is stored, creates an account at the provider. A failure of what is stored
    /// never creates an account, and at a provider without account creation nothing is created.
    case createIfNeeded
}

/// Keeps a user's tokens at a provider whose access tokens and refresh tokens are JWTs: the `OAuthClient` role of
/// DuckDuckGo's Auth design, and the only source of truth for the tokens. `AuthClient.oAuthClient` is one.
///
/// Any task may call the methods; concurrent calls that need a refresh share one request to the provider. With
/// `AuthConfiguration.tokenVerification`, tokens are returned only after both have been verified.
///
/// Every method can throw `serviceError` for a store or a configuration that cannot be used, in addition to the errors
/// that its own documentation lists.
public protocol OAuthClient: Sendable {
    /// How long before its expiry `localValid` and `createIfNeeded` refresh an access token.
    var tokenExpiryBufferInterval: Duration { get }

    /// The user's tokens.
    /// - Throws: `missingTokenContainer` if nothing is stored, or for a forced refresh without a refresh token;
    ///   `invalidTokenRequest`, `unknownAccount` and `unauthenticated` if the user must log in again, after which nothing is
    ///   stored; `serviceError` for everything else, such as a provider that cannot be reached; `internalError` if the
    ///   tokens are no JWTs. A retry helps after a `serviceError` with `retryAfter`.
    func getTokens(policy: AuthTokensCachePolicy) async throws(OAuthClientError) -> TokenContainer

    /// The stored tokens without a refresh, as `local` gives them; nil if none are stored.
    func currentTokenContainer() async throws(OAuthClientError) -> TokenContainer?

    /// Stores tokens in place of the present ones, as `adopt` does; nil removes them, as `removeLocalAccount` does.
    func setCurrentTokenContainer(_ tokenContainer: TokenContainer?) async throws(OAuthClientError)

    /// Whether tokens are stored, expired or not.
    var isUserAuthenticated: Bool { get async throws(OAuthClientError) }

    /// Activates the account that a platform's signature names, and stores its tokens in place of any others. Cancelling the
    /// task does not end the activation once it has begun.
    /// - Parameter signature: what the platform has signed, such as the receipt of an application store: 1 to 65,536 bytes.
    /// - Throws: `unknownAccount` if the signature names no account; `serviceError` with `unexpectedError` if the provider
    ///   refuses for another reason, with `illegalConfiguration` if it has no such accounts, with `networkError` if it or its
    ///   keys do not answer, with `illegalArgument` for a signature out of its range; `internalError` if the tokens are no
    ///   JWTs.
    func activate(withPlatformSignature signature: String) async throws(OAuthClientError) -> TokenContainer

    /// Stores tokens that were obtained elsewhere. They are verified first if the configuration says how.
    /// - Throws: `serviceError` with `illegalArgument` for tokens that are not believed, or with `networkError` if the
    ///   provider's keys do not answer; `internalError` for tokens that are no JWTs.
    func adopt(tokenContainer: TokenContainer) async throws(OAuthClientError)

    /// Verifies tokens, and stores nothing.
    /// - Parameters:
    ///   - accessToken: a JWT.
    ///   - refreshToken: a JWT.
    ///   - refreshID: names the operation in the four events of `refreshEvents` that tell of the keys and of the
    ///     verification; nil means that no event tells of it.
    /// - Throws: `serviceError` with `tokenResponseError` for tokens that are not believed, with `networkError` if the
    ///   provider's keys do not answer, and with `illegalConfiguration` if the configuration does not say how both tokens
    ///   are verified; `internalError` for tokens whose claims cannot be read.
    func decode(
        accessToken: String, refreshToken: String, refreshID: String?
    ) async throws(OAuthClientError) -> TokenContainer

    /// Removes the tokens, and then has the provider end the session. The user is logged out of this program even if the
    /// provider does not answer; it is asked again for a day, while an environment of the same store is open. Does nothing
    /// if nothing is stored.
    func logout() async throws(OAuthClientError)

    /// Removes the tokens. The provider is not informed: tokens that were copied stay valid there. Does nothing if
    /// nothing is stored.
    func removeLocalAccount() async throws(OAuthClientError)

    /// A stream of what becomes of refreshes from now on, in order: of all that use the same storage key in the same
    /// store, even in other processes. Each call creates a separate stream. It ends when the environment is closed, or at
    /// once if the environment cannot be opened. It buffers the newest 1000 events for a slow reader.
    ///
    /// The events of one refresh have the same identifier. They are sent when they are stored: those up to the request to
    /// the provider when it begins, and the others together. A refresh that begins with nothing stored is not stored: its
    /// two events are sent at once, so they may come before those of an earlier refresh.
    var refreshEvents: AsyncStream<OAuthClientRefreshEvent> { get }
}

/// What becomes of a refresh. `refreshID` is a UUID that the events of one refresh have in common.
public enum OAuthClientRefreshEvent: Sendable, Equatable {
    case tokenRefreshStarted(refreshID: String)
    case tokenRefreshRefreshingAccessToken(refreshID: String)
    case tokenRefreshRefreshedAccessToken(refreshID: String)
    case tokenRefreshFetchingJWKS(refreshID: String)
    case tokenRefreshFetchedJWKS(refreshID: String)
    case tokenRefreshVerifyingAccessToken(refreshID: String)
    case tokenRefreshVerifyingRefreshToken(refreshID: String)
    case tokenRefreshSavingTokens(refreshID: String)
    case tokenRefreshSucceeded(refreshID: String)
    /// The last event of a refresh that has failed, in place of those that are missing.
    case tokenRefreshFailed(refreshID: String, error: OAuthClientError)

    /// The identifier of the refresh.
    public var refreshID: String {
        switch self {
        case .tokenRefreshStarted(let id), .tokenRefreshRefreshingAccessToken(let id),
            .tokenRefreshRefreshedAccessToken(let id), .tokenRefreshFetchingJWKS(let id),
            .tokenRefreshFetchedJWKS(let id), .tokenRefreshVerifyingAccessToken(let id),
            .tokenRefreshVerifyingRefreshToken(let id), .tokenRefreshSavingTokens(let id),
            .tokenRefreshSucceeded(let id), .tokenRefreshFailed(let id, _):
            id
        }
    }
}
