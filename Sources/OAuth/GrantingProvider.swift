package import ExternalText

/// The provider that granted credentials, as it was known then. It is kept beside them, because a refresh token is sent
/// to nobody else (RFC 6749 §10.4): another provider could use it at the first one, and its refusal says nothing about
/// the session.
package struct GrantingProvider: Sendable, Equatable {
    /// Nil where none was known.
    package let issuer: WireText?
    /// Where the token was asked for. Nil for imported credentials of an issuer whose metadata was not known then.
    package let tokenEndpoint: WireText?

    /// Nil where neither is known.
    package init?(issuer: WireText?, tokenEndpoint: WireText?) {
        if issuer == nil, tokenEndpoint == nil { return nil }
        self.issuer = issuer
        self.tokenEndpoint = tokenEndpoint
    }

    package init(_ server: AuthorizationServer) {
        issuer = server.issuer.map { WireText($0) }
        tokenEndpoint = WireText(server.tokenEndpoint)
    }
}

/// Whose refresh tokens a tenant's provider is sent: its own, and those of the addresses that an operator has declared
/// to be earlier ones of the same provider.
package struct AcceptedProviders: Sendable, Equatable {
    /// The present provider's.
    package var issuer: WireText?
    /// The present provider's; nil while only metadata tells it that has not been fetched.
    package var tokenEndpoint: WireText?
    package var previousIssuers: [WireText]
    package var previousTokenEndpoints: [WireText]

    package init(
        issuer: WireText?, tokenEndpoint: WireText?, previousIssuers: [WireText] = [],
        previousTokenEndpoints: [WireText] = []
    ) {
        self.issuer = issuer
        self.tokenEndpoint = tokenEndpoint
        self.previousIssuers = previousIssuers
        self.previousTokenEndpoints = previousTokenEndpoints
    }

    /// What credentials belong to that are taken for the present provider's; nil where it has no address.
    package var present: GrantingProvider? { GrantingProvider(issuer: issuer, tokenEndpoint: tokenEndpoint) }

    /// What tells two providers apart.
    package enum Difference: String, Sendable, CaseIterable {
        case issuer
        case tokenEndpoint = "token_endpoint"
    }

    /// In what the provider that granted credentials is another one; nil where it is accepted.
    ///
    /// A provider that moves its token endpoint under one issuer stays the same, so that the endpoints are compared only
    /// where one of the two issuers is not known. Texts are compared by their bytes.
    /// - Parameter granted: nil for credentials that an earlier build stored: they belong to what is configured.
    package func difference(from granted: GrantingProvider?) -> Difference? {
        guard let granted else { return nil }
        let difference: Difference
        if let issuer, let theirs = granted.issuer {
            if issuer == theirs { return nil }
            difference = .issuer
        } else if let theirs = granted.tokenEndpoint {
            // An endpoint that is not known yet is compared before anything is sent to it.
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
