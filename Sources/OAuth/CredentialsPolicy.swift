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
    /// Use the refresh token.
    case refresh
    /// Ask for client credentials.
    case obtainClientCredentials
    /// The user credentials are over: no refresh token, and expired or refused. Put them away and decide again.
    case retire
    /// What the provider has just granted is over already.
    case expiredOnArrival
    /// `policy=local…` with nothing stored.
    case missing
    /// The caller takes no level as low as the best there is.
    case levelNotAvailable
}

/// The heart of the service: from what is held, what is configured and what is asked for to what is done. No clock, no
/// store, no network.
///
/// - Source: TIDAL's Auth design, "Providing credentials" and what follows it.
package struct CredentialsPolicy: Sendable {
    package init() {}

    /// - Parameters:
    ///   - held: what is stored, nil after a logout or before a login.
    ///   - version: the stored record's version, 0 where there is none.
    ///   - canObtainClientCredentials: whether the tenant has a client secret.
    package func decide(
        _ held: HeldCredentials?, version: Int64, canObtainClientCredentials: Bool, query: CredentialsQuery,
        now: Timestamp
    ) -> CredentialsDecision {
        guard let held else {
            if query.policy == .local || query.policy == .localForceRefresh { return .missing }
            return nextLevelBelowUser(canObtainClientCredentials, query)
        }
        if query.lowestLevel > held.level { return .levelNotAvailable }
        if query.policy == .local { return .serve }

        // At the instant of its expiry a token is over, even for a caller who is content with nought seconds.
        let isValid = held.expires > now && held.expires >= now.advanced(by: query.minimumLifetime)
        if isValid, !query.wantsRenewal(of: version) { return .serve }
        switch held.level {
        case .user:
            if held.refreshToken != nil { return .refresh }
            // Forcing cannot make a refresh token. A refusal by the API says that the token is dead all the same.
            return isValid && !query.refusedByAPI ? .serve : .retire
        case .client, .basic:
            if canObtainClientCredentials { return .obtainClientCredentials }
            return isValid && !query.refusedByAPI ? .serve : .retire
        }
    }

    /// Whether what a renewal has just brought is the answer. It is however short it lives, since asking again would
    /// bring the same; but nothing is served past its expiry.
    package func serves(
        renewed held: HeldCredentials?, canObtainClientCredentials: Bool, query: CredentialsQuery, now: Timestamp
    ) -> CredentialsDecision {
        guard let held else { return nextLevelBelowUser(canObtainClientCredentials, query) }
        if query.lowestLevel > held.level { return .levelNotAvailable }
        return held.expires > now ? .serve : .expiredOnArrival
    }

    private func nextLevelBelowUser(
        _ canObtainClientCredentials: Bool, _ query: CredentialsQuery
    ) -> CredentialsDecision {
        let best: CredentialsLevel = canObtainClientCredentials ? .client : .basic
        if query.lowestLevel > best { return .levelNotAvailable }
        return best == .client ? .obtainClientCredentials : .serveBasic
    }
}
