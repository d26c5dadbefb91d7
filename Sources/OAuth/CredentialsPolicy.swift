import Cryptography
package import ExternalText

/// The parameters of `GET /credentials`.
package struct CredentialsQuery: Sendable, Equatable {
    package enum Policy: String, Sendable, CaseIterable {
        /// The stored credentials, without a request to the provider.
        case local
        /// Valid credentials, renewed if necessary.
        case localValid = "local_valid"
        /// Renewed credentials, whatever the age of the stored ones.
        case localForceRefresh = "local_force_refresh"
        /// Valid credentials, created if none are stored.
        case createIfNeeded = "create_if_needed"
    }

    /// 60 seconds (TIDAL's Auth design, "Providing credentials").
    package static let defaultMinimumLifetime: Duration = .seconds(60)
    /// The range of `minimumLifetime` that a caller may request, in seconds.
    package static let minimumLifetimeSeconds: ClosedRange<Int64> = 0...86_400

    package var policy: Policy
    /// How long the token must live at least; nil for `CredentialsPolicy.Terms.minimumLifetime`.
    package var minimumLifetime: Duration?
    /// The lowest level that the caller accepts.
    package var lowestLevel: CredentialsLevel
    /// Whether an API refused the token for a reason that forces a refresh.
    package var refusedByAPI: Bool
    /// The version that the caller wants replaced. If a newer version is stored, it has been replaced already. Nil
    /// means the stored version.
    package var renewedPast: Int64?

    package init(
        policy: Policy = .localValid, minimumLifetime: Duration? = nil,
        lowestLevel: CredentialsLevel = .basic, refusedByAPI: Bool = false, renewedPast: Int64? = nil
    ) {
        self.policy = policy
        self.minimumLifetime = minimumLifetime
        self.lowestLevel = lowestLevel
        self.refusedByAPI = refusedByAPI
        self.renewedPast = renewedPast
    }

    /// Whether a query without parameters asks for the same.
    /// - Parameter usual: how long a token must live for such a query, which is `CredentialsPolicy.Terms.minimumLifetime`.
    package func isDefault(usualLifetime usual: Duration) -> Bool {
        policy == .localValid && (minimumLifetime == nil || minimumLifetime == usual)
            && lowestLevel == .basic && !refusedByAPI && renewedPast == nil
    }

    /// Whether the query asks to replace the given version.
    func requestsRenewal(of version: Int64) -> Bool {
        guard refusedByAPI || policy == .localForceRefresh else { return false }
        return renewedPast.map { version <= $0 } ?? true
    }
}

/// What the broker does about a query.
package enum CredentialsDecision: Sendable, Equatable {
    /// Serve the held credentials.
    case serve
    /// Serve the client identifier.
    case serveBasic
    /// Use the refresh token. An early refresh may fail: the held credentials satisfy the query and are then served.
    case refresh(isEarly: Bool)
    /// Create an account at the provider.
    case createAccount
    /// Move the session to the tenant's registration. If that fails, the held credentials stay and the caller retries
    /// later.
    case upgrade
    /// Request client credentials. With `isUpgrade`, a failure is handled like that of `upgrade`.
    case obtainClientCredentials(isUpgrade: Bool)
    /// Verify the set that was granted last. It may be served once it is verified.
    case verify
    /// The credentials are expired or refused and cannot be renewed. Remove them and decide again.
    case retire
    /// The user's credentials cannot be served, because another provider or another client is configured than those that
    /// they were granted by. They stay stored for the time when these are configured again, so client credentials cannot
    /// be stored in their place.
    case kept
    /// A refresh is asked for that the provider refuses until then. The caller asks again.
    case tooEarly(until: Timestamp)
    /// The provider has just granted credentials that are expired already.
    case expiredOnArrival
    /// No credentials: `policy=local…` without stored credentials, no user's credentials at a provider that has no lower
    /// levels, or a forced refresh without a refresh token.
    case missing
    /// The caller does not accept the highest level that is available.
    case levelNotAvailable
}

/// The central rules of the service: they derive what to do from the held credentials, the configuration and the query.
/// They use no clock, store or network.
///
/// - Source: TIDAL's Auth design, "Providing credentials" and what follows it.
package struct CredentialsPolicy: Sendable {
    /// What a tenant's configuration and its provider permit.
    package struct Terms: Sendable, Equatable {
        /// The registration with which credentials are to be obtained.
        package var client: ClientFingerprint
        /// Whether the tenant has a client secret that may be used for client credentials and not only for refreshes.
        package var canObtainClientCredentials: Bool
        /// Whether the provider supports a grant that moves a session to another registration.
        package var canUpgrade: Bool
        /// Whether an account is created for `create_if_needed` when nothing is stored.
        package var canCreateAccounts: Bool
        /// Whether something is served when no user is logged in: client credentials or the client identifier.
        package var hasLowerLevels: Bool
        /// How long before its expiry a user's token is refreshed early. Not negative.
        package var leadTime: Duration
        /// How long a token must live when the query does not say: 60 seconds, or less.
        package var minimumLifetime: Duration
        /// Whether a user's token is renewed as late as possible, because a refresh ends the token that callers have.
        package var renewsLate: Bool
        /// Whether the provider refuses a refresh while the token is valid, except for its last `leadTime`.
        package var refusesEarlyRefresh = false
        /// The providers whose refresh tokens may be sent to the configured provider.
        package var providers: AcceptedProviders
        /// Clients before the present one that the provider is still asked by, each for the users that it has logged in.
        package var earlierClients: [WireText] = []

        /// - Parameter leadTime: nil when a user's token is not refreshed before the query's lifetime requires it.
        package init(
            client: ClientFingerprint, canObtainClientCredentials: Bool, canUpgrade: Bool,
            canCreateAccounts: Bool = false, hasLowerLevels: Bool = true, leadTime: Duration?,
            renewsLate: Bool = false, providers: AcceptedProviders
        ) {
            self.renewsLate = renewsLate
            self.client = client
            self.providers = providers
            self.canObtainClientCredentials = canObtainClientCredentials
            self.canUpgrade = canUpgrade
            self.canCreateAccounts = canCreateAccounts
            self.hasLowerLevels = hasLowerLevels
            self.leadTime = leadTime ?? .zero
            minimumLifetime = min(
                leadTime ?? CredentialsQuery.defaultMinimumLifetime, CredentialsQuery.defaultMinimumLifetime)
        }
    }

    /// How long before its end a token is renewed at the earliest that ends at its refresh.
    package static let latestRenewal: Duration = .seconds(10)

    package init() {}

    /// - Parameter version: the version under which the set that may be served was stored, 0 without a record.
    package func decide(
        _ record: CredentialRecord, version: Int64, terms: Terms, query: CredentialsQuery, now: Timestamp
    ) -> CredentialsDecision {
        let decision = decide(
            record.held, isOver: record.isOver, renewed: record.waiting == nil ? record.renewed : nil,
            version: version, terms: terms, query: query, now: now)
        guard record.waiting != nil, query.policy != .local else { return decision }
        // While a set waits for its verification, no other grant is asked for.
        return decision == .serve || decision == .refresh(isEarly: true) ? .serve : .verify
    }

    /// - Parameters:
    ///   - held: the stored credentials; nil after a logout or before a login.
    ///   - isOver: whether their session has ended.
    ///   - renewed: when a renewal granted them; nil when a login did, or where that is not known.
    ///   - version: the version of the stored record, 0 without a record.
    package func decide(
        _ held: HeldCredentials?, isOver: Bool = false, renewed: Timestamp? = nil, version: Int64, terms: Terms,
        query: CredentialsQuery, now: Timestamp
    ) -> CredentialsDecision {
        guard let held else {
            if query.policy == .local || query.policy == .localForceRefresh { return .missing }
            if query.policy == .createIfNeeded, terms.canCreateAccounts { return .createAccount }
            return nextLevelBelowUser(terms, query)
        }
        if query.lowestLevel > held.level { return .levelNotAvailable }
        // A set that was imported without an access token has none before its first refresh.
        if query.policy == .local { return held.accessToken.isEmpty ? .missing : .serve }

        let isAnotherRegistration = held.obtainedWith != terms.client
        let isSatisfied = isSatisfied(query, by: held, renewed: renewed, version: version, terms: terms, now: now)
        // A caller that requires more lifetime than is left gets the held token rather than losing the session, unless
        // the API refused the token.
        var relaxedQuery = query
        relaxedQuery.minimumLifetime = query.minimumLifetime.map { min($0, CredentialsQuery.defaultMinimumLifetime) }
        let servesWithoutRenewal =
            isSatisfied
            || isValid(held, renewed: renewed, for: relaxedQuery, terms: terms, now: now) && !query.refusedByAPI
        switch held.level {
        case .user where isOver:
            // What is left of the session is the token, until its end.
            return held.expires > now && !(query.refusedByAPI && query.requestsRenewal(of: version)) ? .serve : .retire
        case .user:
            // A refresh cannot be forced without a refresh token.
            if held.refreshToken == nil, query.policy == .localForceRefresh, query.requestsRenewal(of: version) {
                return .missing
            }
            let isOfOtherProvider = terms.providers.difference(from: held.grantedBy) != nil
            if isAnotherRegistration, !isOfOtherProvider, held.refreshToken != nil, terms.canUpgrade { return .upgrade }
            // A refresh token may be sent only to the provider that granted it, and is bound to the client that it was
            // issued to (RFC 6749 §6). The configuration may be the mistake, so the session stays stored until its
            // provider and its client are configured again, unless nothing is left of it.
            if isOfOtherProvider || !terms.hasClient(of: held) {
                if servesWithoutRenewal { return .serve }
                return held.isLoggedIn(at: now) ? nextLevelBesideUser(terms, query) : .retire
            }
            // If the secret, the scopes or the unique key of the client change, a refresh is still possible, so the user
            // stays logged in.
            if held.refreshToken != nil {
                if held.awaitsExchange { return .refresh(isEarly: false) }
                if let earliest = terms.earliestRefresh(of: held), earliest > now {
                    return query.requestsRenewal(of: version) ? .tooEarly(until: earliest) : .serve
                }
                if !isSatisfied { return .refresh(isEarly: false) }
                if terms.renewsLate { return .serve }
                return now.advanced(by: terms.leadTime) >= held.expires ? .refresh(isEarly: true) : .serve
            }
        case .client, .basic:
            // Client credentials are valid only while the tenant may obtain them.
            guard terms.canObtainClientCredentials else { return .retire }
            if isAnotherRegistration || !isSatisfied {
                return .obtainClientCredentials(isUpgrade: isAnotherRegistration)
            }
        }
        return servesWithoutRenewal ? .serve : .retire
    }

    /// Whether the held credentials satisfy the query without a renewal: their level is high enough, they live long
    /// enough, and the query does not ask to replace them.
    private func isSatisfied(
        _ query: CredentialsQuery, by held: HeldCredentials, renewed: Timestamp? = nil, version: Int64, terms: Terms,
        now: Timestamp
    ) -> Bool {
        query.lowestLevel <= held.level && isValid(held, renewed: renewed, for: query, terms: terms, now: now)
            && !query.requestsRenewal(of: version)
    }

    /// What to do after a renewal has brought `held`. A short lifetime does not matter, since another renewal would
    /// bring the same, but expired credentials are never served.
    package func serves(
        renewed held: HeldCredentials?, terms: Terms, query: CredentialsQuery, now: Timestamp
    ) -> CredentialsDecision {
        guard let held else { return nextLevelBelowUser(terms, query) }
        if query.lowestLevel > held.level { return .levelNotAvailable }
        return held.expires > now ? .serve : .expiredOnArrival
    }

    /// Whether the held token may be served while the renewal that was decided for it fails. True for a token that has
    /// not expired and that neither the caller nor the API refused.
    package func serves(
        whileRenewing held: HeldCredentials?, version: Int64, decision: CredentialsDecision, query: CredentialsQuery,
        now: Timestamp
    ) -> Bool {
        guard let held, held.expires > now, query.lowestLevel <= held.level, !query.requestsRenewal(of: version) else {
            return false
        }
        switch decision {
        case .refresh, .verify, .obtainClientCredentials(isUpgrade: false): return true
        default: return false
        }
    }

    /// Whether a caller that has demanded another token, and does not wait for it any longer, gets the held one.
    package func serves(
        impatient held: HeldCredentials?, decision: CredentialsDecision, query: CredentialsQuery, now: Timestamp
    ) -> Bool {
        guard let held, held.expires > now, query.lowestLevel <= held.level, !query.refusedByAPI else { return false }
        switch decision {
        case .refresh, .obtainClientCredentials(isUpgrade: false): return true
        default: return false
        }
    }

    /// Whether credentials that were read some time ago may be served while the store cannot be read. True only for a
    /// user's token that satisfies the query in every respect: in place of other credentials, a user's session may have
    /// been stored by now.
    package func serves(
        outdated held: HeldCredentials?, version: Int64, terms: Terms, query: CredentialsQuery, now: Timestamp
    ) -> Bool {
        guard let held, held.level == .user, isSatisfied(query, by: held, version: version, terms: terms, now: now)
        else { return false }
        var terms = terms
        // An early refresh must not happen in this situation.
        terms.leadTime = .zero
        return decide(held, version: version, terms: terms, query: query, now: now) == .serve
    }

    /// A token is expired at the instant of its expiry, even for a query with a minimum lifetime of zero.
    private func isValid(
        _ held: HeldCredentials, renewed: Timestamp?, for query: CredentialsQuery, terms: Terms, now: Timestamp
    ) -> Bool {
        guard held.expires > now else { return false }
        var minimum = query.minimumLifetime ?? terms.minimumLifetime
        if terms.renewsLate, held.refreshToken != nil { minimum = min(minimum, Self.latestRenewal) }
        if held.expires >= now.advanced(by: minimum) { return true }
        // The provider's tokens live shorter than the caller wants. Another renewal before the token's half is over would bring
        // hardly more.
        guard let renewed else { return false }
        let life = renewed.duration(to: held.expires)
        return life <= minimum && now < renewed.advanced(by: life / 2)
    }

    private func nextLevelBelowUser(_ terms: Terms, _ query: CredentialsQuery) -> CredentialsDecision {
        if !terms.hasLowerLevels { return .missing }
        let best: CredentialsLevel = terms.canObtainClientCredentials ? .client : .basic
        if query.lowestLevel > best { return .levelNotAvailable }
        return best == .client ? .obtainClientCredentials(isUpgrade: false) : .serveBasic
    }

    /// Like `nextLevelBelowUser`, while the user's credentials stay stored.
    private func nextLevelBesideUser(_ terms: Terms, _ query: CredentialsQuery) -> CredentialsDecision {
        let next = nextLevelBelowUser(terms, query)
        switch next {
        case .obtainClientCredentials(isUpgrade: false), .missing: return .kept
        default: return next
        }
    }
}

extension CredentialsPolicy.Terms {
    /// Whether the set can be refreshed with a client of the tenant: the present one, or an earlier one that is kept.
    package func hasClient(of held: HeldCredentials) -> Bool {
        let own = held.obtainedWith.clientID
        return own == client.clientID || held.level == .user && earlierClients.contains(own)
    }

    /// Before this the provider refuses to refresh the set; nil for no such time. Not later than the token's expiry.
    package func earliestRefresh(of held: HeldCredentials) -> Timestamp? {
        let told = held.terms?.earliestRefresh
        guard refusesEarlyRefresh, held.expires != .never else { return told }
        let last = held.expires.advanced(by: .zero - leadTime)
        return told.map { max($0, last) } ?? last
    }
}

extension HeldCredentials {
    /// Whether a renewal with this configuration could have produced these credentials. A refresh keeps the scopes and the
    /// unique key of the login. If the provider can move sessions, a change of these also moves the session.
    package func isRenewed(by terms: CredentialsPolicy.Terms) -> Bool {
        obtainedWith == terms.client
            || level == .user && !terms.canUpgrade
                && (obtainedWith == obtainedWith.refreshed(by: terms.client)
                    || terms.earlierClients.contains(obtainedWith.clientID))
    }
}
