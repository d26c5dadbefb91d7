/// What a caller asks for with `GET /credentials`.
package struct CredentialsQuery: Sendable, Equatable {
    package enum Policy: String, Sendable, CaseIterable {
        /// As stored, without the network.
        case local
        /// Valid, renewed when it must be.
        case localValid = "local_valid"
        /// Renewed whatever its age.
        case localForceRefresh = "local_force_refresh"
        /// Valid, created when there is none.
        case createIfNeeded = "create_if_needed"
    }

    /// 60 seconds (TIDAL's Auth design, "Providing credentials").
    package static let defaultMinimumLifetime: Duration = .seconds(60)
    /// What a caller may ask for, in seconds.
    package static let minimumLifetimeSeconds: ClosedRange<Int64> = 0...86_400

    package var policy: Policy
    package var minimumLifetime: Duration
    /// The lowest level that the caller takes.
    package var lowestLevel: CredentialsLevel
    /// Set when the API refused a token for one of the reasons that force a refresh.
    package var refusedByAPI: Bool
    /// The version that the caller complains about or wants renewed. Once a newer one is stored, the complaint is
    /// settled.
    package var renewedPast: Int64?

    package init(
        policy: Policy = .localValid, minimumLifetime: Duration = defaultMinimumLifetime,
        lowestLevel: CredentialsLevel = .basic, refusedByAPI: Bool = false, renewedPast: Int64? = nil
    ) {
        self.policy = policy
        self.minimumLifetime = minimumLifetime
        self.lowestLevel = lowestLevel
        self.refusedByAPI = refusedByAPI
        self.renewedPast = renewedPast
    }

    /// Whether it asks for nothing that a query without parameters does not.
    package var isDefault: Bool {
        policy == .localValid && minimumLifetime == Self.defaultMinimumLifetime && lowestLevel == .basic
            && !refusedByAPI && renewedPast == nil
    }

    /// Whether a new set is wanted in place of the given version.
    func wantsRenewal(of version: Int64) -> Bool {
        guard refusedByAPI || policy == .localForceRefresh else { return false }
        return renewedPast.map { version <= $0 } ?? true
    }
}

/// What to do about a query.
package enum CredentialsDecision: Sendable, Equatable {
    /// The held credentials are the answer.
    case serve
    /// The client identifier is the answer.
    case serveBasic
    /// Use the refresh token. An early one may fail: what is held satisfies the query and is served all the same.
    case refresh(isEarly: Bool)
    /// Move the session to the tenant's registration. However it fails, what is held stays and the caller tries again
    /// later.
    case upgrade
    /// Ask for client credentials. As an upgrade it fails as one, too.
    case obtainClientCredentials(isUpgrade: Bool)
    /// The credentials are over: expired or refused, and nothing to renew them with. Put them away and decide again.
    case retire
    /// The user's credentials are over for as long as another provider is configured than the one that granted them.
    /// They are kept for that one, and the client's could be stored only in their place.
    case keptForOtherProvider
    /// What the provider has just granted is over already.
    case expiredOnArrival
    /// `policy=local…` with nothing stored, or a refresh that is forced without a refresh token.
    case missing
    /// The caller takes no level as low as the best there is.
    case levelNotAvailable
}

/// The heart of the service: from what is held, what is configured and what is asked for to what is done. No clock, no
/// store, no network.
///
/// - Source: TIDAL's Auth design, "Providing credentials" and what follows it.
package struct CredentialsPolicy: Sendable {
    /// What a tenant's configuration and its provider allow.
    package struct Terms: Sendable, Equatable {
        /// The registration that credentials are to be obtained with.
        package var client: ClientFingerprint
        /// Whether the tenant has a client secret, and it is for more than refreshes.
        package var canObtainClientCredentials: Bool
        /// Whether the provider has a grant that moves a session to another registration.
        package var canUpgrade: Bool
        /// How long before its expiry a user's token is to be refreshed already. Not negative.
        package var leadTime: Duration
        /// Whose refresh tokens may be sent to the provider.
        package var providers: AcceptedProviders

        package init(
            client: ClientFingerprint, canObtainClientCredentials: Bool, canUpgrade: Bool, leadTime: Duration,
            providers: AcceptedProviders
        ) {
            self.client = client
            self.providers = providers
            self.canObtainClientCredentials = canObtainClientCredentials
            self.canUpgrade = canUpgrade
            self.leadTime = leadTime
        }
    }

    package init() {}

    /// - Parameters:
    ///   - held: what is stored, nil after a logout or before a login.
    ///   - version: the stored record's version, 0 where there is none.
    package func decide(
        _ held: HeldCredentials?, version: Int64, terms: Terms, query: CredentialsQuery, now: Timestamp
    ) -> CredentialsDecision {
        guard let held else {
            if query.policy == .local || query.policy == .localForceRefresh { return .missing }
            return nextLevelBelowUser(terms, query)
        }
        if query.lowestLevel > held.level { return .levelNotAvailable }
        if query.policy == .local { return .serve }

        let isAnotherRegistration = held.obtainedWith != terms.client
        let isSatisfied = isSatisfied(query, by: held, version: version, now: now)
        // Forcing cannot make a refresh token. A refusal by the API says that the token is dead all the same. A caller
        // who wants more time than is left gets what there is: nobody loses a live token for that.
        var least = query
        least.minimumLifetime = min(query.minimumLifetime, CredentialsQuery.defaultMinimumLifetime)
        let servesWithoutRenewal = isSatisfied || isValid(held, least, now) && !query.refusedByAPI
        switch held.level {
        case .user:
            // Nothing can be forced without a refresh token. A token that an API refused is dead all the same.
            if held.refreshToken == nil, query.policy == .localForceRefresh, query.wantsRenewal(of: version),
                !query.refusedByAPI
            {
                return .missing
            }
            // A refresh token is for the provider that granted it. It is kept for when that one is configured again.
            if held.refreshToken != nil, terms.providers.difference(from: held.grantedBy) != nil {
                return servesWithoutRenewal ? .serve : nextLevelBesideUser(terms, query)
            }
            if isAnotherRegistration, held.refreshToken != nil, terms.canUpgrade { return .upgrade }
            // A refresh token is bound to the client that it was issued to (RFC 6749 §6). For that client a refresh
            // stays one when its secret, its scopes or its unique key change: that logs nobody out.
            if held.refreshToken != nil, held.obtainedWith.clientID == terms.client.clientID {
                if !isSatisfied { return .refresh(isEarly: false) }
                return now.advanced(by: terms.leadTime) >= held.expires ? .refresh(isEarly: true) : .serve
            }
        case .client, .basic:
            // The client's own level lasts for as long as the tenant has it.
            guard terms.canObtainClientCredentials else { return .retire }
            if isAnotherRegistration || !isSatisfied {
                return .obtainClientCredentials(isUpgrade: isAnotherRegistration)
            }
        }
        return servesWithoutRenewal ? .serve : .retire
    }

    /// Whether what is held may be the answer without being renewed first: of the level asked for, alive for long
    /// enough, and not complained about.
    private func isSatisfied(
        _ query: CredentialsQuery, by held: HeldCredentials, version: Int64, now: Timestamp
    ) -> Bool {
        query.lowestLevel <= held.level && isValid(held, query, now) && !query.wantsRenewal(of: version)
    }

    /// Whether what a renewal has just brought is the answer. It is however short it lives, since asking again would
    /// bring the same; but nothing is served past its expiry.
    package func serves(
        renewed held: HeldCredentials?, terms: Terms, query: CredentialsQuery, now: Timestamp
    ) -> CredentialsDecision {
        guard let held else { return nextLevelBelowUser(terms, query) }
        if query.lowestLevel > held.level { return .levelNotAvailable }
        return held.expires > now ? .serve : .expiredOnArrival
    }

    /// Whether a token that a renewal was decided for may be given all the same while that renewal brings nothing: it
    /// lives, and neither the caller nor the API has refused it.
    package func serves(
        whileRenewing held: HeldCredentials?, version: Int64, decision: CredentialsDecision, query: CredentialsQuery,
        now: Timestamp
    ) -> Bool {
        guard let held, held.expires > now, query.lowestLevel <= held.level, !query.wantsRenewal(of: version) else {
            return false
        }
        switch decision {
        case .refresh, .obtainClientCredentials(isUpgrade: false): return true
        default: return false
        }
    }

    /// Whether what was held some time ago is the answer as it is, while nobody can say what is held now. Only a user's
    /// token is that is good for all that is asked: in place of anything else there may be a user's session by now.
    package func serves(
        outdated held: HeldCredentials?, version: Int64, terms: Terms, query: CredentialsQuery, now: Timestamp
    ) -> Bool {
        guard let held, held.level == .user, isSatisfied(query, by: held, version: version, now: now) else {
            return false
        }
        var terms = terms
        // Nothing is renewed before its time, either.
        terms.leadTime = .zero
        return decide(held, version: version, terms: terms, query: query, now: now) == .serve
    }

    /// At the instant of its expiry a token is over, even for a caller who is content with nought seconds.
    private func isValid(_ held: HeldCredentials, _ query: CredentialsQuery, _ now: Timestamp) -> Bool {
        held.expires > now && held.expires >= now.advanced(by: query.minimumLifetime)
    }

    private func nextLevelBelowUser(_ terms: Terms, _ query: CredentialsQuery) -> CredentialsDecision {
        let best: CredentialsLevel = terms.canObtainClientCredentials ? .client : .basic
        if query.lowestLevel > best { return .levelNotAvailable }
        return best == .client ? .obtainClientCredentials(isUpgrade: false) : .serveBasic
    }

    /// The same while the user's credentials stay stored.
    private func nextLevelBesideUser(_ terms: Terms, _ query: CredentialsQuery) -> CredentialsDecision {
        let next = nextLevelBelowUser(terms, query)
        return next == .obtainClientCredentials(isUpgrade: false) ? .keptForOtherProvider : next
    }
}

extension HeldCredentials {
    /// Whether a renewal by these terms could have brought these credentials. A refresh leaves the scopes and the unique
    /// key of the login as they were; where a session can be moved, it is moved for these, too.
    package func isRenewed(by terms: CredentialsPolicy.Terms) -> Bool {
        obtainedWith == terms.client
            || level == .user && !terms.canUpgrade && obtainedWith == obtainedWith.refreshed(by: terms.client)
    }
}
