package import ExternalText

/// What the claims of a signed access token or refresh token must say. Nil and empty members expect nothing.
package struct TokenExpectations: Sendable, Equatable {
    /// The tolerance that may be configured for clocks that differ.
    package static let leeways: ClosedRange<Duration> = .zero ... .seconds(300)

    /// `iss`, compared byte by byte.
    package var issuer: WireText?
    /// An element of `aud`.
    package var audience: WireText?
    /// What `scope`, a list with spaces (RFC 8693 §4.2), must name.
    package var scopes: Set<WireText>
    /// Claims that must be there beside those that are compared. `exp` always must.
    package var required: [Claim]
    /// How far the clocks of the issuer and of this process may differ, in `leeways`.
    package var leeway: Duration {
        willSet { Self.require(newValue) }
    }

    package init(
        issuer: WireText? = nil, audience: WireText? = nil, scopes: Set<WireText> = [], required: [Claim] = [],
        leeway: Duration = .zero
    ) {
        Self.require(leeway)
        self.issuer = issuer
        self.audience = audience
        self.scopes = scopes
        self.required = required
        self.leeway = leeway
    }

    static func require(_ leeway: Duration) {
        precondition(leeways.contains(leeway), "the tolerance for clocks is from 0 to 300 s")
    }

    /// Compares the claims of a token with what is expected.
    /// - Returns: the claims.
    /// - Throws: `.fault`, `.missing`, `.issuer`, `.audience`, `.expired`, `.notYetValid`, `.issuedInFuture`, `.scope`.
    package func check(_ token: VerifiedJWS, now: NumericDate) throws(ClaimsRejection) -> ClaimsSet {
        let claims = try token.claimsOrRejection()
        for claim in required where claims.members[WireText(claim.rawValue)] == nil { throw .missing(claim) }
        if let issuer {
            guard let own = claims.issuer else { throw .missing(.iss) }
            guard own == issuer else { throw .issuer }
        }
        if let audience {
            guard !claims.audience.isEmpty else { throw .missing(.aud) }
            guard claims.audience.contains(audience) else { throw .audience }
        }
        try claims.checkTimes(now: now, leeway: leeway)
        if !scopes.isEmpty {
            guard let text = try claims.textOrRejection(.scope) else { throw .missing(.scope) }
            guard scopes.isSubset(of: text.split(at: " ")) else { throw .scope }
        }
        return claims
    }
}

extension VerifiedJWS {
    /// The payload as the claims set of a JWT.
    /// - Throws: `.fault`.
    func claimsOrRejection() throws(ClaimsRejection) -> ClaimsSet {
        do throws(ClaimsFault) {
            return try claims()
        } catch {
            throw .fault(error)
        }
    }
}

extension ClaimsSet {
    /// Compares `exp`, which must be there, and `nbf` and `iat`, where they are, with the time.
    /// - Parameter lead: how far `iat` may be ahead; nil for `leeway`.
    /// - Throws: `.missing`, `.expired`, `.notYetValid`, `.issuedInFuture`.
    func checkTimes(now: NumericDate, leeway: Duration, lead: Duration? = nil) throws(ClaimsRejection) {
        guard let expiry else { throw .missing(.exp) }
        // RFC 7519 §4.1.4: the token is not accepted on or after this time.
        guard now < expiry.advanced(by: leeway) else { throw .expired }
        if let notBefore, now.advanced(by: leeway) < notBefore { throw .notYetValid }
        if let issuedAt, now.advanced(by: lead ?? leeway) < issuedAt { throw .issuedInFuture }
    }

    /// A claim that is a text; nil when it is missing.
    /// - Throws: `.fault(.wrongType)`.
    func textOrRejection(_ claim: Claim) throws(ClaimsRejection) -> WireText? {
        do throws(ClaimsFault) {
            return try text(claim)
        } catch {
            throw .fault(error)
        }
    }
}
