internal import BrokerCore
internal import Cryptography
internal import ExternalText
public import FoundationEssentials
internal import OAuth

/// The levels of credentials, the best last.
public enum CredentialsLevel: String, Sendable, Comparable, CaseIterable {
    /// The client identifier alone.
    case basic
    /// A token of the client's own.
    case client
    /// A user's token.
    case user

    public static func < (left: CredentialsLevel, right: CredentialsLevel) -> Bool {
        allCases.firstIndex(of: left)! < allCases.firstIndex(of: right)!
    }
}

/// What a caller of an API needs (the Auth design's `Credentials`). There is no refresh token in it, ever.
public struct Credentials: Sendable, Equatable {
    public let level: CredentialsLevel
    public let clientID: String
    public let requestedScopes: Set<String>
    public let clientUniqueKey: String?
    /// Nil without a token.
    public let grantedScopes: Set<String>?
    /// Nil for all but a user's credentials, and where the provider does not tell.
    public let userID: String?
    /// Nil without a token, and for one that does not expire.
    public let expires: Date?
    /// The access token, to be sent as `Authorization: Bearer`. Nil for basic credentials.
    public let token: String?

    /// The stored version that these stand for: what a complaint about them is about.
    let version: Int64

    /// Credentials from elsewhere, such as for `Auth.setCredentials`.
    /// - Parameters:
    ///   - requestedScopes: nil for those of the configuration.
    ///   - expires: kept in whole seconds. Nil takes the token's own `exp`, if it is a JWT, or else
    ///     `AuthConfiguration.defaultLifetime`.
    ///   - token: visible ASCII. Nil makes basic credentials, say for a `CredentialsProvider` of your own.
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
    /// Texts of the provider's are compared by their bytes, which takes linear time whatever they are.
    public static func == (left: Credentials, right: Credentials) -> Bool {
        func text(_ text: String?) -> WireText? { text.map { WireText($0) } }
        return left.level == right.level && left.version == right.version && left.expires == right.expires
            && text(left.clientID) == text(right.clientID) && text(left.clientUniqueKey) == text(right.clientUniqueKey)
            && text(left.userID) == text(right.userID) && text(left.token) == text(right.token)
            && left.requestedScopes == right.requestedScopes && left.grantedScopes == right.grantedScopes
    }
}

/// What prints credentials goes by this: neither the token nor the client's unique key is in it.
extension Credentials: CustomStringConvertible, CustomReflectable {
    public var description: String { "\(level.rawValue) credentials of client \(clientID)" }

    public var customMirror: Mirror {
        Mirror(
            self, children: ["level": level, "clientID": clientID, "userID": userID as Any, "expires": expires as Any],
            displayStyle: .struct)
    }
}

/// Sent whenever the credentials change: after a login, a refresh, an upgrade, `setCredentials`, and when they are gone.
public struct CredentialsUpdatedMessage: Sendable, Equatable {
    /// The credentials as they are now; basic ones when there are none any more.
    public let credentials: Credentials

    public init(credentials: Credentials) {
        self.credentials = credentials
    }
}

/// What a user who logs in on another device has to be shown (RFC 8628 §3.2).
public struct DeviceAuthorizationResponse: Sendable, Equatable {
    /// This login's name, for this library. The provider's own code never leaves it.
    public let deviceCode: String
    public let userCode: String
    public let verificationURI: String
    /// The same with the code in it.
    public let verificationURIComplete: String?
    /// How long the user has.
    public let expiresIn: Duration
    /// How often the provider is asked, at most.
    public let interval: Duration

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

/// Supplies credentials, wherever in a program they are needed.
public protocol CredentialsProvider: Sendable {
    /// The best credentials that the configuration allows, good for at least 60 more seconds.
    ///
    /// Does not wait while good ones are in memory. Otherwise one request to the provider serves everybody who asks. While
    /// the store does not answer, a user's token that is in memory and good is served, and nothing of a lower level.
    /// - Parameters:
    ///   - apiErrorSubStatus: the `subStatus` with which an API refused a token; `11003`, `6001`, `11001`, `11002` and
    ///     `11101` cause a refresh, any other changes nothing.
    ///   - refused: the credentials that the API refused. Where newer ones are stored by now, those are the answer.
    ///     Without it, a refresh is made in any case.
    /// - Throws: `retryableError`, `networkError`, `storageUnavailable` (ask again later), `illegalConfiguration`,
    ///   `unexpectedError`, `tokenResponseError`, `providerUntrusted`, `storageUnusable`, `illegalArgument`. The user
    ///   stays logged in whatever is thrown.
    func getCredentials(apiErrorSubStatus: String?, refused: Credentials?) async throws(AuthError) -> Credentials

    /// Whether a user is logged in, as far as is known here: there is a refresh token, or a token that has not expired.
    /// Does not ask the provider.
    /// - Throws: `storageUnavailable` where the store does not answer and no user's token that is still good is in memory;
    ///   `storageUnusable`, `illegalArgument`.
    func isUserLoggedIn() async throws(AuthError) -> Bool

    /// A stream of every change from now on, in order, whoever makes it. Each call gives a stream of its own, which
    /// ends when the environment is closed, or at once where that cannot be opened. It keeps the newest 1000 messages
    /// for a reader who is slow; the credentials in a message are those that were stored when it was sent.
    var bus: AsyncStream<CredentialsUpdatedMessage> { get }
}

extension CredentialsProvider {
    /// `getCredentials(apiErrorSubStatus:refused:)` without a complaint.
    public func getCredentials() async throws(AuthError) -> Credentials {
        try await getCredentials(apiErrorSubStatus: nil, refused: nil)
    }

    /// `getCredentials(apiErrorSubStatus:refused:)` about whatever is stored.
    public func getCredentials(apiErrorSubStatus: String?) async throws(AuthError) -> Credentials {
        try await getCredentials(apiErrorSubStatus: apiErrorSubStatus, refused: nil)
    }
}
