package import Cryptography
package import ExternalText
package import JSON

/// Stored credentials with a token: the result of a login, a refresh or the client credentials grant.
package struct HeldCredentials: Sendable, Equatable {
    /// `user` or `client`.
    package var level: CredentialsLevel
    package var accessToken: SecretBytes
    package var refreshToken: SecretBytes?
    /// `never` for a token that is valid until an API refuses it.
    package var expires: Timestamp
    package var grantedScopes: ScopeSet
    package var userID: WireText?
    /// The identifiers of the user that the provider has sent. The response to a refresh must not contradict them.
    package var identity = UserIdentity()
    package var obtainedWith: ClientFingerprint
    /// Nil for credentials that an earlier build stored; they count as granted by the configured provider.
    package var grantedBy: GrantingProvider?
    /// The time before which the refresh token must not be used, because the provider may still process a request with
    /// the previous refresh token. Nil when it may be used at once.
    package var refreshableFrom: Timestamp?
    /// Which of the tokens were verified.
    package var proof = TokenProof()
    /// The key by which the session lets other apps in; nil for a session that has none.
    package var deviceKey: DeviceKey?
    /// One reference for what few sets have, so that the others pay for one.
    private var rare: RareFacts?

    /// What the provider told beside the token, by the profile's names; nil for nothing.
    package var extra: ExtraFacts? {
        get { rare?.members.extra }
        set { if rare != nil || newValue != nil { changeRare { $0.extra = newValue } } }
    }

    /// What is known of the life of the grant beside the token's expiry; nil for nothing.
    package var terms: GrantTerms? {
        get { rare?.members.terms }
        set { if rare != nil || newValue != nil { changeRare { $0.terms = newValue } } }
    }

    /// What the grant was asked for beside the client's scopes, which each refresh repeats; nil for nothing.
    package var asked: AskedGrant? {
        get { rare?.members.asked }
        set { if rare != nil || newValue != nil { changeRare { $0.asked = newValue } } }
    }

    /// The grant that an import has brought this set from; nil for a set that no import has brought.
    package var imported: ImportedGrant? {
        get { rare?.members.imported }
        set { if rare != nil || newValue != nil { changeRare { $0.imported = newValue } } }
    }

    /// The key that the tokens are bound to; nil for tokens that need none.
    package var proofKey: DPoPKey? {
        get { rare?.members.proofKey }
        set { if rare != nil || newValue != nil { changeRare { $0.proofKey = newValue } } }
    }

    /// Whether the set has one of these.
    package var hasRareFacts: Bool { rare != nil }
    /// The memory of the object that has them, in bytes.
    package static let rareFactsSize = 16 + MemoryLayout<RareFacts.Members>.size

    private mutating func changeRare(_ change: (inout RareFacts.Members) -> Void) {
        var members = rare?.members ?? RareFacts.Members()
        change(&members)
        rare = RareFacts(members)
    }

    /// When the first of this user's logins came, since which there was neither an end nor a login of a user who is not known to
    /// be the same; `unknownLogin` for credentials that an earlier build stored. Identifies the login that sessions, codes and
    /// biometric keys of apps belong to: two logins under a storage key have different times.
    package var loggedInSince = unknownLogin

    /// Earlier than every login. Not nil, which would cost each cached user eight bytes more.
    package static let unknownLogin = Timestamp(milliseconds: 0)

    /// The type of the access token, which says how callers send it (RFC 6750, RFC 9449 §7.1).
    package var tokenType: String { proofKey?.bindsToken == true ? "DPoP" : "Bearer" }

    /// The expiry of the token; nil when it does not expire.
    package var expiry: Timestamp? { expires == .never ? nil : expires }

    /// Whether these credentials mean that a user is logged in, as far as this is known without asking the provider.
    /// Without a refresh token this is true until the token expires.
    package func isLoggedIn(at now: Timestamp) -> Bool {
        level == .user && (refreshToken != nil || expires > now)
    }

    package init(
        level: CredentialsLevel, accessToken: SecretBytes, refreshToken: SecretBytes?, expires: Timestamp,
        grantedScopes: ScopeSet, userID: WireText?, obtainedWith: ClientFingerprint, grantedBy: GrantingProvider?,
        refreshableFrom: Timestamp? = nil
    ) {
        precondition(level != .basic, "basic credentials hold no token")
        self.level = level
        self.accessToken = accessToken
        self.refreshToken = refreshToken
        self.expires = expires
        self.grantedScopes = grantedScopes
        self.userID = userID
        self.obtainedWith = obtainedWith
        self.grantedBy = grantedBy
        self.refreshableFrom = refreshableFrom
    }

    /// Creates credentials from a grant: a login, a refresh, an upgrade, or the client credentials grant.
    ///
    /// Values that the response omits are taken from the replaced credentials: the refresh token stays valid (RFC 6749
    /// §6), the user is the same, and the scopes are those granted before. If no response has named the scopes, they
    /// are the requested ones (RFC 6749 §5.1: absent means identical). A user's credentials and the client's take
    /// nothing from each other.
    /// - Parameters:
    ///   - server: the provider that granted them.
    ///   - requested: the scopes that the request named; nil means the client's scopes.
    ///   - isLogin: whether a user has just logged in, whose token is exchanged where the provider has such an exchange.
    package init(
        granted response: TokenResponse, level: CredentialsLevel, to client: ClientConfiguration,
        by server: AuthorizationServer, requested: ScopeSet? = nil, replacing previous: HeldCredentials? = nil,
        isLogin: Bool = false, now: Timestamp
    ) {
        let previous = previous?.level == level ? previous : nil
        let awaitsExchange = isLogin && level == .user && server.own?.exchange != nil
        // Where the token itself is presented, it takes the place of the refresh token.
        let presented = awaitsExchange || server.own?.refreshesByAccessToken == true ? response.accessToken : nil
        let kept = previous?.isRefreshedByAccessToken == true ? nil : previous?.refreshToken
        let refreshToken = level == .user ? response.refreshToken ?? presented ?? kept : nil
        let lifetime = server.defaultLifetime ?? .assumed(canBeRenewed: level == .client || refreshToken != nil)
        self.init(
            level: level, accessToken: response.accessToken, refreshToken: refreshToken,
            expires: response.expires ?? (response.hasUnreadableLifetime ? lifetime.limited : lifetime).end(from: now),
            grantedScopes: response.scopes ?? previous?.grantedScopes ?? requested ?? server.asked?.scopes
                ?? client.scopes,
            userID: level == .user ? response.userID ?? previous?.userID : nil,
            obtainedWith: client.fingerprint, grantedBy: GrantingProvider(server))
        proofKey = response.proofKey
        if level == .user {
            if proofKey == nil { proofKey = previous?.proofKey }
            identity = response.identity.completed(by: previous?.identity)
            // A refresh need not bring an ID token; the one of the login still tells who the user is.
            proof.idToken = previous?.proof.idToken
            deviceKey = previous?.deviceKey
            asked = server.asked
            extra = ExtraFacts(previous?.extra, response.extra)
            imported = previous?.imported
            terms = GrantTerms(
                response, from: server.preset, awaitsExchange: awaitsExchange, expires: expires,
                renewing: previous?.terms, keepsRefreshToken: refreshToken == previous?.refreshToken, now: now)
            if let previous { loggedInSince = previous.loggedInSince }
        }
    }
}

/// What few sets of credentials have. Immutable.
private final class RareFacts: Sendable, Equatable {
    struct Members: Sendable, Equatable {
        var extra: ExtraFacts?
        var terms: GrantTerms?
        var asked: AskedGrant?
        var imported: ImportedGrant?
        var proofKey: DPoPKey?
    }

    let members: Members

    /// Nil for nothing.
    init?(_ members: Members) {
        if members == Members() { return nil }
        self.members = members
    }

    static func == (left: RareFacts, right: RareFacts) -> Bool { left === right || left.members == right.members }
}

/// Facts that are kept with credentials. An object, since few have any.
package final class ExtraFacts: Sendable, Equatable {
    package let members: [WireText: JSONValue]

    /// The facts of before, with those of a later answer in their place; nil where there are none.
    package init?(_ earlier: ExtraFacts?, _ later: [WireText: JSONValue]) {
        let members = (earlier?.members ?? [:]).merging(later) { $1 }
        if members.isEmpty { return nil }
        self.members = Extra.bounded(members.sorted { $0.key < $1.key }.map { ($0.key, $0.value) })
    }

    package func encode(to json: inout JSONWriter) {
        json.object { json in
            for (name, value) in members.sorted(by: { $0.key < $1.key }) { json.member(name.text, value) }
        }
    }

    package static func == (left: ExtraFacts, right: ExtraFacts) -> Bool { left.members == right.members }
}

extension HeldCredentials {
    /// Whether a refusal of a kind that ends sessions (`TokenFailure.endsSession`) ended this session, if `client`
    /// requested the refresh. If another client has logged the user in, the refusal is about the requesting client. If
    /// the client's secret has changed, only `invalid_grant` is about the session, because the provider examines the
    /// refresh token after it has authenticated the client (RFC 6749 §6); other refusals may be about the new secret.
    package func isEnded(by answer: TokenErrorResponse, refreshedBy client: ClientFingerprint) -> Bool {
        guard obtainedWith.clientID == client.clientID else { return false }
        return obtainedWith.clientSecretDigest == client.clientSecretDigest || answer.isInvalidGrant
    }

    /// SHA-256 of the refresh token; nil without a refresh token.
    package var refreshTokenDigest: [UInt8]? {
        refreshToken.map { $0.withRevealed { SHA256.digest($0) } }
    }
}

extension TokenErrorResponse {
    /// Whether the server refused the grant itself and not the client (RFC 6749 §5.2).
    package var isInvalidGrant: Bool { error == "invalid_grant" }

    /// Whether the server does not know the client or takes another for it (RFC 6749 §5.2), whatever the client has asked for.
    package var isInvalidClient: Bool { error == "invalid_client" }

    /// Whether the client may not make such a request, by the name that RFC 6749 §5.2 has for that.
    package var isUnauthorizedClient: Bool { error == "unauthorized_client" }
}
