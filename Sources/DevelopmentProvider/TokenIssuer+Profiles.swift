import Containers
import ExternalText

/// What the profiles need that are played from their documents.
extension TokenIssuer {
    /// The lifetime of a token that another one was exchanged for, as that of the providers with such requests: 60 days.
    private static let exchangedLifetime: Duration = .seconds(60 * 86_400)

    /// The tokens of the user, which come with those of a bot.
    struct UserTokens: Sendable {
        let access: String
        let refresh: String?
        let scope: [String]
    }

    /// The client of a token; nil for an unknown one.
    func client(ofToken token: WireText) -> ProviderClient? {
        let id = refreshTokens[Secrets.digest(token.text)]?.clientID ?? record(ofAccessToken: token.text)?.clientID
        return id.flatMap { configuration.client(WireText($0)) }
    }

    /// When a refresh token ends that is issued or used now; nil for never.
    /// - Parameter predecessor: the digest of the token in whose place it comes; nil for a login's, and for one that is kept.
    func endOfRefreshToken(successorTo predecessor: String?, now: Int64) -> Int64? {
        if configuration.refreshTokenLifetimeStart == .login, let record = predecessor.flatMap({ refreshTokens[$0] }) {
            return record.expiresAt
        }
        return configuration.refreshTokenLifetime.map { Self.time(now, $0) }
    }

    /// Issues the tokens of the other kind, whose refresh tokens are a family of their own.
    mutating func userTokens(_ code: AuthorizationCode, client: ProviderClient, now: Int64) -> UserTokens? {
        if code.userScope.isEmpty { return nil }
        let family = openFamily(user: code.user, client: client, origin: .authorizationCode, now: now)
        let grant = issue(client: client, scope: code.userScope, user: code.user, family: family, now: now)
        return UserTokens(access: grant.accessToken, refresh: grant.refreshToken, scope: code.userScope)
    }

    /// Issues an access token that lives longer for another one, which stays good.
    mutating func renew(
        _ token: WireText, _ form: TranslatedRequest.OwnForm, now: Int64, trace: inout RefreshTrace?
    ) throws(OAuthError) -> Grant {
        guard let held = introspect(accessToken: token.text, now: now), let user = held.user, let family = held.family,
            let client = configuration.client(WireText(held.clientID))
        else {
            trace = RefreshTrace(outcome: .unknown)
            throw OAuthError(.invalidRefreshToken, "The access token is not valid")
        }
        if case .refresh = form, let earliest = configuration.translation?.earliestRefresh,
            now < Self.time(held.issuedAt, earliest)
        {
            trace = RefreshTrace(outcome: .refused, family: family)
            throw OAuthError(.invalidRequest, "The access token is too young to be refreshed")
        }
        let usual = configuration.accessTokenLifetime
        configuration.accessTokenLifetime = Self.exchangedLifetime
        defer { configuration.accessTokenLifetime = usual }
        trace = RefreshTrace(outcome: .kept, family: family)
        return issue(
            client: client, scope: held.scope, user: user, family: family, issuesRefreshToken: false, now: now)
    }
}
