import Containers
import ExternalText
import Reactor

/// The provider's state and rules, without HTTP: authorization codes, token families and tokens, with the
/// device authorizations of `DeviceAuthorizations`.
///
/// The keys of the tables are digests of secrets. Every table is bounded and removes its oldest entry first.
struct TokenIssuer: Sendable {
    var configuration: ProviderConfiguration
    var minter: TokenMinter
    var accounts: AccountDirectory
    var apps: AppDirectory
    /// How clients authenticate by JWTs.
    var assertions = ClientAssertions()
    private(set) var events = Events()
    var codes = BoundedTable<String, AuthorizationCode>(capacity: 20_000)
    /// By the digests of their addresses.
    var pushedRequests = BoundedTable<String, PushedRequest>(capacity: 20_000)
    /// When each proof came, by the digests of their identifiers.
    var proofs = BoundedTable<String, Int64>(capacity: 20_000)
    private var devices = DeviceAuthorizations()
    private(set) var families: BoundedTable<Int, Family>
    private(set) var refreshTokens: BoundedTable<String, RefreshTokenRecord>
    private var accessTokens: BoundedTable<String, AccessTokenRecord>
    private var lastFamily = 0

    /// The most refresh tokens of a family that are kept. An older token is unknown when it is presented, so its reuse
    /// is not detected.
    private static let maximumGenerations = 5000

    /// - Parameter minter: keeps its keys when a provider is reset.
    init(configuration: ProviderConfiguration, minter: TokenMinter = TokenMinter()) {
        self.configuration = configuration
        self.minter = minter
        accounts = AccountDirectory(capacity: max(1, configuration.capacity / 4))
        apps = AppDirectory(capacity: max(1, configuration.capacity / 4))
        families = BoundedTable(capacity: max(1, configuration.capacity / 4))
        refreshTokens = BoundedTable(capacity: configuration.capacity)
        accessTokens = BoundedTable(capacity: configuration.capacity)
    }

    // MARK: Authorization codes

    mutating func issueCode(_ content: AuthorizationCode) -> String {
        let length = configuration.behaviour.codeLength
        let code = length.map { Secrets.makeAlphanumeric(count: $0) } ?? Secrets.make("ac_")
        codes[Secrets.digest(code)] = content
        events.codesIssued += 1
        return code
    }

    /// Exchanges a code for tokens. A refusal for another reason than reuse leaves the code valid.
    mutating func redeem(
        code: WireText, client: ProviderClient, redirectURI: WireText?, verifier: WireText?, now: Int64
    ) throws(OAuthError) -> Grant {
        let digest = Secrets.digest(code.text)
        guard var entry = codes[digest] else { throw OAuthError(.invalidGrant, "Invalid authorization code") }
        if let family = entry.family {
            events.codeReuses += 1
            revoke(family: family, .codeReuse, now: now)
            throw OAuthError(.invalidGrant, "Authorization code was used already", tokenStatus: .fraudDetected)
        }
        guard entry.clientID == client.id else {
            throw OAuthError(.invalidGrant, "Authorization code was issued to another client")
        }
        guard now < entry.expiresAt else { throw OAuthError(.invalidGrant, "Authorization code has expired") }
        if redirectURI.map({ $0 != WireText(entry.redirectURI) }) ?? entry.redirectURIWasSent {
            throw OAuthError(.invalidGrant, "Invalid redirect URI")
        }
        try check(verifier: verifier, challenge: entry.challenge)
        try checkAccount(of: entry.user)
        let family = openFamily(user: entry.user, client: client, origin: .authorizationCode, now: now)
        entry.family = family
        codes[digest] = entry
        let login = TokenMinter.Login(nonce: entry.nonce, authenticatedAt: entry.issuedAt)
        var grant = issue(
            client: client, scope: entry.scope, user: entry.user, family: family, login: login, now: now)
        grant.userTokens = userTokens(entry, client: client, now: now)
        return grant
    }

    /// Refuses a user whose account was suspended or removed since the login.
    private func checkAccount(of user: ProviderUser) throws(OAuthError) {
        guard configuration.behaviour.keepsAccounts else { return }
        switch accounts.state(of: user) {
        case .active, .unverified: return
        case .suspended: throw OAuthError(.invalidRefreshToken, "The account is suspended")
        case .removed: throw OAuthError(.unknownAccount, "There is no such account")
        }
    }

    /// Ends the session that the first use of an authorization session led to.
    mutating func noteSessionReuse(codeDigest: String, now: Int64) {
        if let family = codes[codeDigest]?.family { revoke(family: family, .sessionReuse, now: now) }
        codes[codeDigest] = nil
    }

    private func check(verifier: WireText?, challenge: String?) throws(OAuthError) {
        let longest = configuration.behaviour.longestVerifier
        switch (verifier, challenge) {
        case (nil, nil): return
        case (nil, _?): throw OAuthError(.invalidGrant, "code_verifier is missing")
        // Without this check, a code from a request without PKCE could be injected into a session with PKCE (RFC 9700
        // §2.1.1).
        case (_?, nil): throw OAuthError(.invalidGrant, "code_verifier without code_challenge")
        case (let verifier?, let challenge?):
            guard (43...longest).contains(verifier.count), verifier.utf8.allSatisfy(\.isUnreserved) else {
                throw OAuthError(.invalidGrant, "code_verifier is not 43 to \(longest) unreserved characters")
            }
            guard Secrets.challenge(verifier.text) == challenge else {
                throw OAuthError(.invalidGrant, "code_verifier was incorrect")
            }
        }
    }

    // MARK: Keys

    /// Refuses a code or a refresh token that is bound to another key than the one that the request proves (RFC 9449 §5, §10).
    func checkKey(ofCode code: WireText?, refreshToken: WireText?, proven: String?) throws(OAuthError) {
        let ofCode = code.flatMap { codes[Secrets.digest($0.text)]?.keyThumbprint }
        let ofFamily = refreshToken.flatMap { refreshTokens[Secrets.digest($0.text)] }
            .flatMap { families[$0.family]?.keyThumbprint }
        guard let bound = ofCode ?? ofFamily else { return }
        guard bound == proven else { throw OAuthError(.invalidProof, "The grant is bound to another key") }
    }

    /// Binds the refresh tokens of a public client to the key that its request proves.
    mutating func bind(_ grant: Grant, to thumbprint: String) {
        guard grant.client.secret == nil, let family = record(ofAccessToken: grant.accessToken)?.family else { return }
        families[family]?.keyThumbprint = thumbprint
    }

    // MARK: Device authorizations

    mutating func authorizeDevice(client: ProviderClient, scope: [String], now: Int64) -> DeviceAuthorizations.Grant {
        devices.authorize(client: client, scope: scope, configuration: configuration, now: now)
    }

    /// The pending device authorization of a user code, in any spelling of the code; nil when there is none.
    func device(userCode: WireText, now: Int64) -> DeviceAuthorizations.Entry? {
        devices.pending(userCode: userCode, now: now)
    }

    /// Records the user's decision. Returns false when no pending device authorization has this code.
    mutating func decide(
        userCode: WireText, _ decision: DeviceAuthorizations.Decision, now: Int64
    ) -> Bool {
        devices.decide(userCode: userCode, decision, now: now)
    }

    /// Issues tokens if the user has approved the device; see `DeviceAuthorizations.poll`.
    mutating func poll(deviceCode: WireText, client: ProviderClient, now: Int64) throws(OAuthError) -> Grant {
        let approval = try devices.poll(
            deviceCode: deviceCode, client: client, slowsDownEagerPolls: configuration.slowsDownEagerPolls, now: now)
        let family = openFamily(user: approval.user, client: client, origin: .deviceCode, now: now)
        let login = TokenMinter.Login(nonce: nil, authenticatedAt: now)
        return issue(
            client: client, scope: approval.scope, user: approval.user, family: family, login: login, now: now)
    }

    // MARK: Refresh

    /// Handles the grant `refresh_token` and, with `movesClient`, `update_client`.
    mutating func refresh(
        _ token: WireText, client: ProviderClient, scope requested: [String]?, movesClient: Bool = false, now: Int64,
        trace: inout RefreshTrace?
    ) throws(OAuthError) -> Grant {
        let digest = Secrets.digest(token.text)
        guard var entry = refreshTokens[digest], let family = families[entry.family] else {
            trace = RefreshTrace(outcome: .unknown)
            throw OAuthError(.invalidRefreshToken, "Token could not be verified")
        }
        entry.present(at: now)
        refreshTokens[digest] = entry
        func fail(_ outcome: RefreshTrace.Outcome, error: OAuthError, trace: inout RefreshTrace?) -> OAuthError {
            trace = RefreshTrace(outcome: outcome, family: family.id, presentedGeneration: entry.generation)
            return error
        }
        let behaviour = configuration.behaviour
        func invalid(_ status: TokenStatus = .invalid) -> OAuthError {
            OAuthError(.invalidRefreshToken, "Refresh token is invalid", tokenStatus: status)
        }
        if let revocation = family.revocation {
            throw fail(.revoked, error: invalid(revocation.cause.tokenStatus), trace: &trace)
        }
        do {
            try checkAccount(of: family.user)
        } catch {
            throw fail(.refused, error: error, trace: &trace)
        }
        guard movesClient || entry.clientID == client.id else {
            throw fail(.otherClient, error: behaviour.refusalOfOthersToken, trace: &trace)
        }
        var outcome = RefreshTrace.Outcome.kept
        if case .rotate(let grace) = rotation(of: client) {
            outcome = .rotated
            if let supersededAt = entry.supersededAt {
                if entry.isConfirmed && configuration.successorEndsGrace || now - supersededAt >= grace.milliseconds {
                    events.reuseDetections += 1
                    families[family.id]?.reusesDetectedAt.append(now)
                    if behaviour.endsReusedSessions { revoke(family: family.id, .refreshTokenReuse, now: now) }
                    throw fail(.reused, error: invalid(.reused), trace: &trace)
                }
                outcome = .graceReplay
            }
        }
        if let expiresAt = entry.expiresAt, now >= expiresAt {
            throw fail(.expired, error: invalid(.expired), trace: &trace)
        }
        let scope: [String]
        do {
            // A move uses the scopes of the new client's registration; a refresh cannot extend the grant (RFC 6749 §6).
            scope =
                movesClient
                ? try Self.scope(requested, of: client)
                : try Self.scope(requested, within: entry.scope)
        } catch {
            throw fail(.refused, error: error, trace: &trace)
        }

        if outcome == .graceReplay {
            events.graceReplays += 1
            if behaviour.endsReplayedAccessTokens {
                for token in entry.accessTokens { accessTokens[token] = nil }
                refreshTokens[digest]?.accessTokens = []
            }
        }
        if outcome != .kept {
            events.rotations += 1
            refreshTokens[digest]?.supersededAt = entry.supersededAt ?? now
        } else if configuration.refreshTokenLifetimeStart == .use {
            let end = endOfRefreshToken(successorTo: nil, now: now)
            refreshTokens[digest]?.expiresAt = end
        }
        if let predecessor = entry.predecessorDigest { refreshTokens[predecessor]?.isConfirmed = true }
        for token in families[family.id]?.endingAccessTokens ?? [] { accessTokens[token] = nil }
        families[family.id]?.endingAccessTokens = []
        let issuesRefreshToken = outcome != .kept || movesClient
        let grant = issue(
            client: client, scope: scope, user: family.user, family: family.id, refreshScope: entry.scope,
            successorTo: digest, issuesRefreshToken: issuesRefreshToken, movesClient: movesClient, now: now)
        note(accessToken: grant.accessToken, from: digest)
        trace = RefreshTrace(
            outcome: outcome, family: family.id, presentedGeneration: entry.generation,
            issuedGeneration: grant.refreshToken == nil ? nil : families[family.id]?.lastGeneration)
        return grant
    }

    func rotation(of client: ProviderClient) -> RefreshTokenRotation {
        guard configuration.behaviour.rotatesByClient, let rotates = client.rotatesRefreshTokens else {
            return configuration.rotation
        }
        guard rotates else { return .none }
        return configuration.rotation == .none ? .rotate(grace: .zero) : configuration.rotation
    }

    // MARK: Client credentials

    mutating func grantClientCredentials(
        client: ProviderClient, scope: [String]?, now: Int64
    ) throws(OAuthError) -> Grant {
        guard client.secret != nil || client.publicKeys != nil else {
            throw OAuthError(.unauthorizedClient, "A client without a secret has no credentials of its own")
        }
        let scope = try Self.scope(scope, of: client)
        let token = issueAccessToken(client: client, scope: scope, user: nil, family: nil, now: now)
        return Grant(
            client: client, accessToken: token, lifetime: configuration.accessTokenLifetime, refreshToken: nil,
            scope: scope, user: nil)
    }

    // MARK: Sessions without a login

    /// Opens a session as a login of this user does.
    mutating func openSession(user: ProviderUser, client: ProviderClient, now: Int64) -> Grant {
        let behaviour = configuration.behaviour
        if behaviour.keepsAccounts, accounts.state(of: user) == .removed { accounts.set(.active, of: user) }
        let family = openFamily(user: user, client: client, origin: .control, now: now)
        let scope = (behaviour.grantsUsualScopesOnly ? nil : client.scopes) ?? behaviour.usualScopes
        return issue(client: client, scope: scope, user: user, family: family, now: now)
    }

    // MARK: Tokens

    mutating func openFamily(
        user: ProviderUser, client: ProviderClient, origin: Family.Origin, now: Int64
    ) -> Int {
        lastFamily += 1
        families[lastFamily] = Family(
            id: lastFamily, user: user, clientID: client.id, origin: origin, createdAt: now)
        return lastFamily
    }

    mutating func issue(
        client: ProviderClient, scope: [String], user: ProviderUser, family: Int, refreshScope: [String]? = nil,
        successorTo predecessor: String? = nil, issuesRefreshToken: Bool = true, movesClient: Bool = false,
        login: TokenMinter.Login? = nil, now: Int64
    ) -> Grant {
        var refreshToken: String?
        let isOffline =
            configuration.refreshTokenScope.map { wanted in
                (refreshScope ?? scope).contains { WireText($0) == wanted }
            } ?? true
        if issuesRefreshToken, isOffline, configuration.issuesRefreshTokens {
            // A refresh with fewer scopes restricts only the access token (RFC 6749 §6).
            let scope = movesClient ? scope : refreshScope ?? scope
            refreshToken = issueRefreshToken(
                client: client, scope: scope, family: family, successorTo: predecessor, now: now)
        }
        let accessToken = issueAccessToken(client: client, scope: scope, user: user, family: family, now: now)
        var grant = Grant(
            client: client, accessToken: accessToken, lifetime: configuration.accessTokenLifetime,
            refreshToken: refreshToken, scope: scope, user: user)
        if configuration.behaviour.issuesIDTokens, scope.contains(where: { WireText($0) == "openid" }) {
            let content = TokenMinter.Content(
                clientID: client.id, user: user, scope: scope, family: family, issuedAt: now,
                expiresAt: Self.time(now, configuration.accessTokenLifetime))
            grant.idToken = minter.idToken(content, login, accessToken: accessToken, configuration)
        }
        return grant
    }

    private mutating func issueAccessToken(
        client: ProviderClient, scope: [String], user: ProviderUser?, family: Int?, now: Int64
    ) -> String {
        let expiresAt = Self.time(now, configuration.accessTokenLifetime)
        let token = minter.accessToken(
            TokenMinter.Content(
                clientID: client.id, user: user, scope: scope, family: family, issuedAt: now, expiresAt: expiresAt),
            configuration)
        accessTokens[Secrets.digest(token)] = AccessTokenRecord(
            clientID: client.id, user: user, scope: scope, family: family, issuedAt: now, expiresAt: expiresAt)
        if configuration.refreshEndsAccessTokens, let family {
            families[family]?.endingAccessTokens.append(Secrets.digest(token))
        }
        events.tokensIssued += 1
        return token
    }

    private mutating func issueRefreshToken(
        client: ProviderClient, scope: [String], family: Int, successorTo predecessor: String?, now: Int64
    ) -> String? {
        guard var owner = families[family] else { return nil }
        let expiresAt = endOfRefreshToken(successorTo: predecessor, now: now)
        let token = minter.refreshToken(
            TokenMinter.Content(
                clientID: client.id, user: owner.user, scope: scope, family: family, issuedAt: now,
                expiresAt: expiresAt),
            configuration)
        let digest = Secrets.digest(token)
        owner.lastGeneration += 1
        owner.refreshTokens.append(digest)
        if owner.refreshTokens.count > Self.maximumGenerations {
            refreshTokens[owner.refreshTokens.removeFirst()] = nil
        }
        families[family] = owner
        refreshTokens[digest] = RefreshTokenRecord(
            digest: digest, family: family, generation: owner.lastGeneration,
            predecessor: predecessor.flatMap { refreshTokens[$0]?.generation }, clientID: client.id, scope: scope,
            issuedAt: now, expiresAt: expiresAt,
            predecessorDigest: predecessor)
        return token
    }

    /// Remembers which refresh token an access token was issued for.
    private mutating func note(accessToken: String, from refreshToken: String) {
        guard configuration.behaviour.endsReplayedAccessTokens else { return }
        refreshTokens[refreshToken]?.accessTokens.append(Secrets.digest(accessToken))
        if let count = refreshTokens[refreshToken]?.accessTokens.count, count > RefreshTokenRecord.maximumAccessTokens {
            refreshTokens[refreshToken]?.accessTokens.removeFirst()
        }
    }

    func isAlive(family: Int) -> Bool { families[family].map { $0.revocation == nil } ?? false }

    mutating func logOut(family: Int, now: Int64) { revoke(family: family, .logout, now: now) }

    func record(ofAccessToken token: String) -> AccessTokenRecord? { accessTokens[Secrets.digest(token)] }

    /// The record of a token that a resource server would accept; nil when the token is expired, revoked or unknown.
    func introspect(accessToken: String, now: Int64) -> AccessTokenRecord? {
        guard let token = accessTokens[Secrets.digest(accessToken)], now < token.expiresAt else { return nil }
        if let family = token.family, families[family]?.revocation != nil { return nil }
        return token
    }

    // MARK: Revocation

    /// Revokes a token (RFC 7009 §2.1). Revoking a refresh token revokes its family; revoking an access token revokes
    /// only that token. An unknown token counts as revoked.
    mutating func revoke(token: WireText, client: ProviderClient, now: Int64) throws(OAuthError) {
        let digest = Secrets.digest(token.text)
        let owner = refreshTokens[digest]?.clientID ?? accessTokens[digest]?.clientID
        guard let owner else { return }
        guard owner == client.id else { throw OAuthError(.invalidGrant, "The token was issued to another client") }
        accessTokens[digest] = nil
        if let family = refreshTokens[digest]?.family { revoke(family: family, .client, now: now) }
    }

    /// Revokes all sessions of the user and returns how many were active.
    mutating func revokeAll(userID: Int64, now: Int64) -> Int {
        let alive = families.all.filter { $0.value.user.id == userID && $0.value.revocation == nil }
        for (id, _) in alive { revoke(family: id, .control, now: now) }
        return alive.count
    }

    mutating func revoke(family: Int, _ cause: Family.RevocationCause, now: Int64) {
        guard families[family] != nil, families[family]?.revocation == nil else { return }
        families[family]?.revocation = Family.Revocation(at: now, cause: cause)
        events.familiesRevoked += 1
    }

    // MARK: Control

    mutating func expire(_ what: Expirable, userID: Int64?, now: Int64) {
        func applies(to user: ProviderUser?) -> Bool { userID == nil || user?.id == userID }
        switch what {
        case .accessTokens:
            accessTokens.updateAll { if applies(to: $0.user) { $0.expiresAt = min($0.expiresAt, now) } }
        case .refreshTokens:
            let users = families
            refreshTokens.updateAll {
                if applies(to: users[$0.family]?.user) { $0.expiresAt = min($0.expiresAt ?? now, now) }
            }
        case .authorizationCodes:
            codes.updateAll { if applies(to: $0.user) { $0.expiresAt = min($0.expiresAt, now) } }
        case .deviceCodes:
            devices.expire(now: now) { user in applies(to: user) }
        }
    }

    /// - Parameter userID: nil means all users.
    func ledger(userID: Int64? = nil) -> Ledger {
        var users: [Ledger.UserEntry] = []
        var indices: [ProviderUser: Int] = [:]
        for (_, family) in families.all where userID == nil || family.user.id == userID {
            let entry = Ledger.FamilyEntry(
                family: family, refreshTokens: family.refreshTokens.compactMap { refreshTokens[$0] })
            if let index = indices[family.user] {
                users[index].families.append(entry)
            } else {
                indices[family.user] = users.count
                users.append(Ledger.UserEntry(user: family.user, families: [entry]))
            }
        }
        return Ledger(users: users, events: events)
    }

    func ledgerSummary() -> LedgerSummary {
        var summary = LedgerSummary()
        var users: Set<Int64> = []
        for (_, family) in families.all {
            users.insert(family.user.id)
            summary.families += 1
            if family.revocation == nil { summary.familiesAlive += 1 }
        }
        summary.users = users.count
        for (_, token) in refreshTokens.all {
            summary.refreshTokens += 1
            summary.presentations += token.presentations
            if token.presentations > 1 { summary.presentedAgain += 1 }
        }
        summary.rotations = events.rotations
        summary.graceReplays = events.graceReplays
        summary.reuseDetections = events.reuseDetections
        return summary
    }
}
