import ExternalText
import OAuth

/// How long what the provider grants lives, and what keeps it alive.
extension TenantConfiguration {
    /// Notes a request of the provider's own form that nothing gives parameters.
    func checkOwnRequests(_ reader: inout ObjectReader) {
        for (name, request) in [("refresh", ownRefresh), ("exchange_for_long_lived", ownExchange)] {
            if let request, request.parameters == nil {
                reader.note(WireText(name), "needs parameters with this provider, whose profile has none")
            }
        }
    }

    /// The user's token where one is asked for, else the bot's, at a provider that has both.
    var effectiveTokenUse: AnswerShape.TokenUse {
        tokenUse ?? (asksForUser || preset.shape.userScopeParameter == nil ? .user : .bot)
    }

    /// Whether logins ask for scopes of the user, by `user_scopes` or by the parameter itself.
    private var asksForUser: Bool {
        guard let name = preset.shape.userScopeParameter else { return false }
        return !requests.userScopes.isEmpty || requests.authorizeParameters[name] != nil
    }

    /// Notes a `token_use` that no login can fulfil.
    func checkTokenUse(_ reader: inout ObjectReader) {
        if tokenUse == .user, preset.shape.userScopeParameter != nil, !asksForUser {
            reader.note(
                "token_use", "needs user_scopes with this provider: without them a login brings the bot's token only")
        }
    }

    private var ownRefresh: RequestTemplate? { RequestTemplate.merged(preset.refresh, refresh) }
    private var ownExchange: RequestTemplate? { RequestTemplate.merged(preset.exchange, exchange) }

    /// Whether refreshes present the access token, so that a user stays logged in without a refresh token.
    package var refreshesByAccessToken: Bool { ownRefresh?.usesAccessToken ?? false }

    /// The requests that have forms of the provider's own; nil for none.
    ///
    /// They go where the tenant says. The preset's addresses hold only while the tenant names no token endpoint of its own: what
    /// takes the provider's place is asked for everything.
    func ownRequests(at server: AuthorizationServer) -> OwnRequests? {
        func form(
            _ template: RequestTemplate?, _ own: RequestTemplate?, _ preset: RequestTemplate?, or address: String?
        ) -> OwnRequests.Form? {
            guard let template else { return nil }
            // One that cannot be filled is no URL, so that the request fails as illegal_configuration and goes nowhere else.
            let usual = endpoints.token == nil ? preset?.endpoint.map { filled($0) ?? $0.text } : nil
            let named = own?.endpoint?.text ?? address ?? usual
            return OwnRequests.Form(address: named ?? server.tokenEndpoint, template: template)
        }
        guard preset.refresh != nil || preset.exchange != nil || refresh != nil || exchange != nil else { return nil }
        return OwnRequests(
            refresh: form(ownRefresh, refresh, preset.refresh, or: server.refreshEndpoint),
            exchange: form(ownExchange, exchange, preset.exchange, or: nil))
    }

    /// When credentials are refreshed although no caller asks, because what renews them ends unused.
    struct Upkeep {
        /// From then on they are refreshed. Not later than `end`.
        let from: Timestamp
        /// When what renews them ends.
        let end: Timestamp
    }

    /// The longest time before that end at which they are refreshed: longer than a provider is away.
    private static let longestUpkeep: Duration = .seconds(7 * 86_400)

    /// Nil for credentials that need no such refresh, or whose end is not known.
    func upkeep(of record: CredentialRecord) -> Upkeep? {
        guard let held = record.held, held.level == .user, held.refreshToken != nil, !record.isOver else { return nil }
        let start = record.renewed ?? held.grantBegan
        let end: Timestamp
        if held.isRefreshedByAccessToken {
            guard let expiry = held.expiry else { return nil }
            end = expiry
        } else {
            guard let idle = idleLife, let start else { return nil }
            end = held.terms?.refreshTokenEnds ?? start.advanced(by: idle)
        }
        let life = start.map { $0.duration(to: end) } ?? Self.longestUpkeep * 4
        let ahead = min(max(life, .zero) / 4, Self.longestUpkeep)
        let from = end.advanced(by: .zero - ahead)
        return Upkeep(from: held.terms?.earliestRefresh.map { max($0, from) } ?? from, end: end)
    }

    /// How long a refresh token lives that is not used; nil where that is not known, or where a use does not prolong it.
    var idleLife: Duration? {
        idleExpiry ?? preset.lives.idle
            ?? (preset.lives.isFixed ? nil : refreshTokenLifetime ?? preset.lives.refreshToken)
    }
}
