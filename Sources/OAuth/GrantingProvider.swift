package import ExternalText

/// The provider that granted credentials, as it was configured then. It is stored with the credentials because a
/// refresh token must not be sent to another provider (RFC 6749 §10.4): the other provider could use the token at the
/// first one, and its refusal says nothing about the session.
package struct GrantingProvider: Sendable, Equatable {
    /// Nil when the issuer was not known.
    package let issuer: WireText?
    /// The token endpoint that granted the token. Nil for imported credentials of an issuer whose metadata had not been
    /// fetched.
    package let tokenEndpoint: WireText?

    /// Nil when neither is known.
    package init?(issuer: WireText?, tokenEndpoint: WireText?) {
        if issuer == nil, tokenEndpoint == nil { return nil }
        self.issuer = issuer
        self.tokenEndpoint = tokenEndpoint
    }

    package init(_ server: AuthorizationServer) {
        issuer = server.issuer.map { WireText($0) }
        tokenEndpoint = WireText(server.tokenEndpoint)
    }

    /// Whether the two are known to be the same provider, so that equal identifiers mean the same user.
    package func isKnownToBe(_ other: GrantingProvider) -> Bool {
        if let issuer, let theirs = other.issuer { return issuer == theirs }
        return tokenEndpoint != nil && tokenEndpoint == other.tokenEndpoint
    }
}

/// The providers whose refresh tokens may be sent to a tenant's provider: the provider itself, and the addresses that
/// an operator has declared to be earlier addresses of the same provider.
package struct AcceptedProviders: Sendable, Equatable {
    /// The issuer of the configured provider.
    package var issuer: WireText?
    /// The token endpoint of the configured provider; nil while only metadata names it that has not been fetched.
    package var tokenEndpoint: WireText?
    /// Whether an operator has named that endpoint, and not the provider's metadata.
    package var namesTokenEndpoint: Bool
    package var previousIssuers: [WireText]
    package var previousTokenEndpoints: [WireText]

    package init(
        issuer: WireText?, tokenEndpoint: WireText?, namesTokenEndpoint: Bool = false,
        previousIssuers: [WireText] = [], previousTokenEndpoints: [WireText] = []
    ) {
        self.issuer = issuer
        self.tokenEndpoint = tokenEndpoint
        self.namesTokenEndpoint = namesTokenEndpoint
        self.previousIssuers = previousIssuers
        self.previousTokenEndpoints = previousTokenEndpoints
    }

    /// The provider that is recorded for credentials which are taken to be from the configured provider; nil when it
    /// has no address.
    package var present: GrantingProvider? { GrantingProvider(issuer: issuer, tokenEndpoint: tokenEndpoint) }

    /// The attribute by which two providers differ.
    package enum Difference: String, Sendable, CaseIterable {
        case issuer
        case tokenEndpoint = "token_endpoint"
    }

    /// The attribute by which the provider that granted credentials differs; nil when its refresh tokens are accepted.
    ///
    /// A provider whose metadata moves its token endpoint and keeps its issuer is the same provider. Therefore endpoints are
    /// compared only when one of the two issuers is not known, or where an operator has named the endpoint, who may have
    /// mistaken it. Texts are compared by their bytes.
    /// - Parameter granted: nil for credentials that an earlier build stored; these are accepted.
    package func difference(from granted: GrantingProvider?) -> Difference? {
        guard let granted else { return nil }
        let difference: Difference
        if let issuer, let theirs = granted.issuer, issuer != theirs {
            difference = .issuer
        } else if issuer != nil, granted.issuer != nil {
            guard namesTokenEndpoint, let tokenEndpoint, let theirs = granted.tokenEndpoint, tokenEndpoint != theirs,
                !previousTokenEndpoints.contains(theirs)
            else { return nil }
            return .tokenEndpoint
        } else if let theirs = granted.tokenEndpoint {
            // An endpoint that is not known yet will be compared before any token is sent to it.
            guard let tokenEndpoint, tokenEndpoint != theirs else { return nil }
            difference = .tokenEndpoint
        } else {
            difference = .issuer
        }
        if let theirs = granted.issuer, previousIssuers.contains(theirs) { return nil }
        if let theirs = granted.tokenEndpoint, previousTokenEndpoints.contains(theirs) { return nil }
        return difference
    }
}
