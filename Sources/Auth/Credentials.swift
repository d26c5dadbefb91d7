import BrokerCore
import Cryptography
import ExternalText
public import FoundationEssentials
import OAuth

/// The levels of credentials, lowest first.
public enum CredentialsLevel: String, Sendable, Comparable, CaseIterable {
    /// Only the client identifier, without a token.
    case basic
    /// A token for the client.
    case client
    /// A token for a user.
    case user

    public static func < (left: CredentialsLevel, right: CredentialsLevel) -> Bool {
        left.rank < right.rank
    }

    var core: OAuth.CredentialsLevel {
        switch self {
        case .basic: .basic
        case .client: .client
        case .user: .user
        }
    }

    private var rank: Int {
        switch self {
        case .basic: 0
        case .client: 1
        case .user: 2
        }
    }
}

/// The credentials for calling an API (the Auth design's `Credentials`). They never contain a refresh token.
public struct Credentials: Sendable, Equatable {
    /// The level of these credentials.
    public let level: CredentialsLevel
    /// The client identifier.
    public let clientID: String
    /// The scopes that were requested.
    public let requestedScopes: Set<String>
    /// The unique key of the client's installation; nil if none is configured.
    public let clientUniqueKey: String?
    /// The scopes that the provider granted; nil without a token.
    public let grantedScopes: Set<String>?
    /// The user; nil for credentials without a user, and if the provider has not sent an identifier.
    public let userID: String?
    /// The expiry of the token; nil without a token, and for a token that does not expire.
    public let expires: Date?
    /// The access token, to be sent as `Authorization: Bearer`. Nil for basic credentials.
    public let token: String?

    /// The stored version of these credentials, to which a complaint about them refers.
    let version: Int64

    /// Creates credentials that were obtained elsewhere, for example for `AuthClient.setCredentials`.
    /// - Parameters:
    ///   - level: default `user`.
    ///   - clientID: the client identifier.
    ///   - requestedScopes: nil means the scopes of the configuration.
    ///   - clientUniqueKey: the unique key of the client's installation. Default: none.
    ///   - grantedScopes: nil means the requested scopes.
    ///   - userID: the user. Default: not known.
    ///   - expires: is stored in whole seconds. Nil means the token's `exp` claim if it is a JWT, otherwise
    ///     `AuthConfiguration.defaultLifetime`.
    ///   - token: visible ASCII. Nil makes basic credentials, for example for your own
    ///     implementation of `CredentialsProvider`.
    public init(
        level: CredentialsLevel = .user, clientID: String, requestedScopes: Set<String>? = nil,
        clientUniqueKey: String? = nil, grantedScopes: Set<String>? = nil, userID: String? = nil,
        expires: Date? = nil, token: String?
    ) {
        self.level = level
        self.clientID = clientID
        self.requestedScopes = requestedScopes ?? []
        self.clientUniqueKey = clientUniqueKey
        self.grantedScopes = grantedScopes
        self.userID = userID
        self.expires = expires
        self.token = token
        version = 0
    }

    init(_ held: HeldCredentials, version: Int64) {
        level = held.level == .user ? .user : .client
        clientID = held.obtainedWith.clientID.text
        requestedScopes = Set(held.obtainedWith.scopes.values)
        clientUniqueKey = held.obtainedWith.clientUniqueKey?.text
        grantedScopes = Set(held.grantedScopes.values)
        userID = held.userID?.text
        expires = held.expiry.map { Date(timeIntervalSince1970: Double($0.milliseconds) / 1000) }
        token = held.accessToken.revealedText
        self.version = version
    }

    init(basic client: ClientConfiguration) {
        level = .basic
        clientID = client.clientID.text
        requestedScopes = Set(client.scopes.values)
        clientUniqueKey = client.clientUniqueKey?.text
        grantedScopes = nil
        userID = nil
        expires = nil
        token = nil
        version = 0
    }
}

extension Credentials {
    /// Texts from the provider are compared by their bytes, which takes linear time for every text.
    public static func == (left: Credentials, right: Credentials) -> Bool {
        func text(_ text: String?) -> WireText? { text.map { WireText($0) } }
        return left.level == right.level && left.version == right.version && left.expires == right.expires
            && text(left.clientID) == text(right.clientID) && text(left.clientUniqueKey) == text(right.clientUniqueKey)
            && text(left.userID) == text(right.userID) && text(left.token) == text(right.token)
            && left.requestedScopes == right.requestedScopes && left.grantedScopes == right.grantedScopes
    }
}

/// Printing credentials uses these. They omit the token and the client's unique key.
extension Credentials: CustomStringConvertible, CustomReflectable {
    public var description: String { "\(level.rawValue) credentials of client \(clientID)" }

    public var customMirror: Mirror {
        Mirror(
            self, children: ["level": level, "clientID": clientID, "userID": userID as Any, "expires": expires as Any],
            displayStyle: .struct)
    }
}

/// A notice that a token is about to expire.
public struct CredentialsExpiringMessage: Sendable, Equatable {
    /// The stored credentials when the message was sent.
    public let credentials: Credentials

    /// Creates a message, for tests of code that uses the library.
    public init(credentials: Credentials) {
        self.credentials = credentials
    }
}

/// What a user needs for logging in on another device (RFC 8628 §3.2).
public struct DeviceAuthorizationResponse: Sendable, Equatable {
    /// The library's identifier for this login. It is not the provider's device code, which is never shown.
    public let deviceCode: String
    /// The code that the user enters.
    public let userCode: String
    /// The address that the user opens.
    public let verificationURI: String
    /// The address that contains the user code; nil if the provider sent none.
    public let verificationURIComplete: String?
    /// How long the user has for the login.
    public let expiresIn: Duration
    /// The shortest time between two polls of the provider.
    public let interval: Duration

    /// Creates a response, for tests of code that uses the library.
    public init(
        deviceCode: String, userCode: String, verificationURI: String, verificationURIComplete: String? = nil,
        expiresIn: Duration, interval: Duration
    ) {
        self.deviceCode = deviceCode
        self.userCode = userCode
        self.verificationURI = verificationURI
        self.verificationURIComplete = verificationURIComplete
        self.expiresIn = expiresIn
        self.interval = interval
    }
}

/// Provides credentials to the parts of a program that call APIs.
public protocol CredentialsProvider: Sendable {
    /// The credentials of the highest available level, valid for at least 60 more seconds.
    ///
    /// Returns without waiting if valid credentials are in memory. Otherwise one request to the provider serves all
    /// concurrent callers. While the store does not answer, only a valid user's token that is in memory is returned,
    /// and no credentials of a lower level.
    /// - Parameters:
    ///   - apiErrorSubStatus: the `subStatus` with which an API refused a token. `11003`, `6001`, `11001`, `11002` and
    ///     `11101` cause a refresh; other values have no effect.
    ///   - refused: the credentials that the API refused. If newer ones are stored already, these are returned without
    ///     a refresh. Nil always refreshes.
    /// - Throws: `retryableError`, `networkError`, `storageUnavailable` (retry later), `illegalConfiguration`,
    ///   `unexpectedError`, `tokenResponseError`, `providerUntrusted`, `storageUnusable`, `illegalArgument`. No error
    ///   logs the user out.
    func getCredentials(apiErrorSubStatus: String?, refused: Credentials?) async throws(AuthError) -> Credentials

    /// The same, but no credentials of a lower level than `level`.
    /// - Throws: in addition, `missingTokenContainer` if the best credentials are of a lower level. If that is because the user's
    ///   session has ended, `AuthError.sessionEnd` says how. `illegalConfiguration` if the user's credentials are kept for another
    ///   configuration.
    func getCredentials(
        level: CredentialsLevel, apiErrorSubStatus: String?, refused: Credentials?
    ) async throws(AuthError) -> Credentials

    /// Whether a user is logged in: a refresh token is stored, or a user's token that has not expired. Does not ask the
    /// provider.
    /// - Throws: `storageUnavailable` if the store does not answer and no valid user's token is in memory;
    ///   `storageUnusable`; `illegalArgument`.
    func isUserLoggedIn() async throws(AuthError) -> Bool

    /// A stream of all changes from now on, in order, including those of other instances and processes. Each call
    /// creates a separate stream. It ends when the environment is closed, or at once if the environment cannot be
    /// opened. It buffers the newest 1000 messages for a slow reader. A message contains the credentials that were
    /// stored when it was sent.
    var bus: AsyncStream<CredentialsUpdatedMessage> { get }
}

extension CredentialsProvider {
    /// The credentials without a complaint: `getCredentials(apiErrorSubStatus:refused:)` with nil.
    public func getCredentials() async throws(AuthError) -> Credentials {
        try await getCredentials(apiErrorSubStatus: nil, refused: nil)
    }

    /// For a provider that does not know why there are no credentials of that level.
    public func getCredentials(
        level: CredentialsLevel, apiErrorSubStatus: String?, refused: Credentials?
    ) async throws(AuthError) -> Credentials {
        let credentials = try await getCredentials(apiErrorSubStatus: apiErrorSubStatus, refused: refused)
        guard credentials.level >= level else {
            throw AuthError(.missingTokenContainer, message: "There are no credentials of the level \(level.rawValue).")
        }
        return credentials
    }

    /// The credentials of that level or a higher one, without a complaint.
    public func getCredentials(level: CredentialsLevel) async throws(AuthError) -> Credentials {
        try await getCredentials(level: level, apiErrorSubStatus: nil, refused: nil)
    }

    /// The credentials after a complaint about the stored ones: `getCredentials(apiErrorSubStatus:refused:)` with nil
    /// for `refused`.
    public func getCredentials(apiErrorSubStatus: String?) async throws(AuthError) -> Credentials {
        try await getCredentials(apiErrorSubStatus: apiErrorSubStatus, refused: nil)
    }
}
