import ExternalText
import JSON

/// What is known of the life of one grant, beside the expiry of its access token. Immutable; an object, since few grants have any.
package final class GrantTerms: Sendable, Equatable {
    /// Whether the token is a login's, and is to be exchanged for one that lives longer.
    package let awaitsExchange: Bool
    /// Before this the provider refuses a refresh; nil for no such time.
    package let earliestRefresh: Timestamp?
    /// When the refresh token ends, by the provider's answer; nil where that does not say it.
    package let refreshTokenEnds: Timestamp?
    /// When the user's consent ends, likewise.
    package let consentEnds: Timestamp?
    /// When its login came, where the user was logged in before, so that `loggedInSince` is another time; nil elsewhere.
    package let relogin: Timestamp?

    /// Nil where nothing is known.
    package init?(
        awaitsExchange: Bool = false, earliestRefresh: Timestamp? = nil, refreshTokenEnds: Timestamp? = nil,
        consentEnds: Timestamp? = nil, relogin: Timestamp? = nil
    ) {
        if !awaitsExchange, earliestRefresh == nil, refreshTokenEnds == nil, consentEnds == nil, relogin == nil {
            return nil
        }
        self.relogin = relogin
        self.awaitsExchange = awaitsExchange
        self.earliestRefresh = earliestRefresh
        self.refreshTokenEnds = refreshTokenEnds
        self.consentEnds = consentEnds
    }

    /// The terms of a grant; nil where nothing is known.
    /// - Parameters:
    ///   - awaitsExchange: whether its token is to be exchanged.
    ///   - expires: when its access token ends. A later time for the first refresh counts as that, since nothing is served then.
    ///   - previous: those of the grant that this one renews; nil for a login.
    ///   - keepsRefreshToken: whether the refresh token is that of the grant before.
    convenience init?(
        _ response: TokenResponse, from profile: ProviderPreset, awaitsExchange: Bool, expires: Timestamp,
        renewing previous: GrantTerms?, keepsRefreshToken: Bool, now: Timestamp
    ) {
        let earliest =
            awaitsExchange ? nil : response.earliestRefresh ?? profile.earliestRefreshAfter.map { now.advanced(by: $0) }
        self.init(
            awaitsExchange: awaitsExchange, earliestRefresh: earliest.map { min($0, expires) },
            refreshTokenEnds: response.refreshTokenEnds ?? (keepsRefreshToken ? previous?.refreshTokenEnds : nil),
            consentEnds: response.consentEnds ?? previous?.consentEnds, relogin: previous?.relogin)
    }

    /// The terms of a login that keeps the refresh token of an earlier grant.
    convenience init?(login: GrantTerms?, keepingRefreshTokenOf earlier: GrantTerms?) {
        self.init(
            awaitsExchange: login?.awaitsExchange ?? false, earliestRefresh: login?.earliestRefresh,
            refreshTokenEnds: earlier?.refreshTokenEnds, consentEnds: login?.consentEnds ?? earlier?.consentEnds,
            relogin: earlier?.relogin)
    }

    /// The terms of a login of a user who was logged in before.
    convenience init?(login: GrantTerms?, at now: Timestamp) {
        self.init(
            awaitsExchange: login?.awaitsExchange ?? false, earliestRefresh: login?.earliestRefresh,
            refreshTokenEnds: login?.refreshTokenEnds, consentEnds: login?.consentEnds, relogin: now)
    }

    package static func == (left: GrantTerms, right: GrantTerms) -> Bool {
        left === right
            || left.awaitsExchange == right.awaitsExchange && left.earliestRefresh == right.earliestRefresh
                && left.refreshTokenEnds == right.refreshTokenEnds && left.consentEnds == right.consentEnds
                && left.relogin == right.relogin
    }

    /// Writes the members of the sealed record.
    func encode(to json: inout JSONWriter) {
        if awaitsExchange { json.member("awaits_exchange", true) }
        json.memberIfPresent("earliest_refresh", earliestRefresh?.milliseconds)
        json.memberIfPresent("refresh_token_ends", refreshTokenEnds?.milliseconds)
        json.memberIfPresent("consent_ends", consentEnds?.milliseconds)
        json.memberIfPresent("relogin", relogin?.milliseconds)
    }

    /// Reads the members of a sealed record; nil where it has none.
    convenience init?(json: JSONValue) {
        func time(_ name: WireText) -> Timestamp? { (json[name]?.integer).map(Timestamp.init(milliseconds:)) }
        self.init(
            awaitsExchange: json["awaits_exchange"]?.bool ?? false, earliestRefresh: time("earliest_refresh"),
            refreshTokenEnds: time("refresh_token_ends"), consentEnds: time("consent_ends"), relogin: time("relogin"))
    }
}

extension HeldCredentials {
    /// Whether the token is a login's, and is to be exchanged for one that lives longer.
    package var awaitsExchange: Bool { terms?.awaitsExchange ?? false }

    /// Whether the access token takes the place of a refresh token, so that it must be refreshed before it ends.
    package var isRefreshedByAccessToken: Bool { refreshToken == accessToken }

    /// When the login came that has brought the grant; nil where that is not known.
    package var login: Timestamp? { terms?.relogin ?? (loggedInSince == Self.unknownLogin ? nil : loggedInSince) }

    /// From when the lives of the refresh token and of the consent count: when the provider granted an imported set, as its line has
    /// said, else the login; nil where that is not known.
    package var grantBegan: Timestamp? { imported?.granted ?? login }

    /// Whether there is a refresh token of the provider's.
    package var hasRefreshToken: Bool { refreshToken != nil && !isRefreshedByAccessToken }
}
