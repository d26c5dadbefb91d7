import Cryptography
package import ExternalText

/// What an ID token must say to be believed (OpenID Connect Core §3.1.3.7, and §12.2 for one that a refresh brought).
package struct IDTokenExpectations: Sendable {
    package enum Nonce: Sendable, Equatable {
        /// The authorization request had this nonce, so the token must have it, too.
        case required(WireText)
        /// A refresh brought the token: it need not repeat the nonce of the login, but must not have another one.
        case sameIfPresent(WireText)
        /// The request had none. A token with one belongs to another request.
        case absent
        /// The request is not known: the token was brought from outside.
        case unchecked
    }

    /// The access token or the code that came with the ID token.
    package struct Companion: Sendable {
        package let text: WireText
        /// Whether the ID token must have the hash of it. Otherwise the hash is compared where there is one.
        package let requiresHash: Bool

        package init(_ text: WireText, requiresHash: Bool) {
            self.text = text
            self.requiresHash = requiresHash
        }
    }

    /// The longest `sub`, in bytes (OpenID Connect Core §2).
    package static let longestSubject = 255

    /// `iss`, compared byte by byte.
    package var issuer: WireText
    /// The client that the token must be for.
    package var clientID: WireText
    /// Other audiences that may be in `aud` beside the client. Nil permits any, where `azp` says that the token was issued
    /// to the client.
    package var trustedAudiences: Set<WireText>?
    /// The algorithms that this provider may sign ID tokens with.
    package var algorithms: Set<SignatureAlgorithm>
    package var nonce: Nonce
    /// How far the clocks of the provider and of this process may differ, in `TokenExpectations.leeways`.
    package var leeway: Duration = .zero {
        willSet { TokenExpectations.require(newValue) }
    }
    /// The longest time since `iat`, to which `leeway` is added; nil permits any.
    package var maximumTokenAge: Duration?
    /// How far `iat` may be ahead of now; nil means `leeway`.
    package var maximumLead: Duration?
    /// The `max_age` of the authorization request: the longest time since `auth_time`, which must then be there.
    package var maximumAuthenticationAge: Duration?
    /// The ways to authenticate that were demanded, of which `acr` must be one; empty permits any.
    package var authenticationContexts: Set<WireText> = []
    /// The user that the token must be about: that of the login, when a refresh brought the token.
    package var subject: WireText?
    package var accessToken: Companion?
    package var code: Companion?

    /// Expectations of everything that each ID token must have. The optional ones are set afterwards.
    package init(issuer: WireText, clientID: WireText, algorithms: Set<SignatureAlgorithm>, nonce: Nonce) {
        self.issuer = issuer
        self.clientID = clientID
        self.algorithms = algorithms
        self.nonce = nonce
    }

    /// Compares a token with what is expected, in the order of OpenID Connect Core §3.1.3.7.
    /// - Parameter token: a token whose signature was verified with a key of the issuer.
    /// - Returns: the claims, of which `subject` is there and names a user of the issuer.
    /// - Throws: every case of `ClaimsRejection` but `.scope`.
    package func check(_ token: VerifiedJWS, now: NumericDate) throws(ClaimsRejection) -> ClaimsSet {
        let claims = try token.claimsOrRejection()
        let algorithm = token.header.algorithm
        guard let issuer = claims.issuer else { throw .missing(.iss) }
        guard issuer == self.issuer else { throw .issuer }
        try checkAudience(of: claims)
        guard algorithms.contains(algorithm) else { throw .algorithm }
        try claims.checkTimes(now: now, leeway: leeway, lead: maximumLead)
        guard let issuedAt = claims.issuedAt else { throw .missing(.iat) }
        if let maximumTokenAge, issuedAt.duration(to: now) > maximumTokenAge + leeway { throw .issuedTooLongAgo }
        try checkNonce(of: claims)
        try checkAuthentication(of: claims, now: now)
        try checkHash(.accessTokenHash, of: accessToken, in: claims, algorithm, or: .accessTokenHash)
        try checkHash(.codeHash, of: code, in: claims, algorithm, or: .codeHash)
        try checkSubject(of: claims)
        return claims
    }

    private func checkAudience(of claims: ClaimsSet) throws(ClaimsRejection) {
        guard !claims.audience.isEmpty else { throw .missing(.aud) }
        guard claims.audience.contains(clientID) else { throw .audience }
        let party = try claims.textOrRejection(.azp)
        let others = claims.audience.filter { $0 != clientID }
        if let trustedAudiences {
            guard trustedAudiences.isSuperset(of: others) else { throw .untrustedAudience }
        } else {
            guard others.isEmpty || party != nil else { throw .untrustedAudience }
        }
        guard party.map({ $0 == clientID }) ?? true else { throw .authorizedParty }
    }

    private func checkNonce(of claims: ClaimsSet) throws(ClaimsRejection) {
        let own = try claims.textOrRejection(.nonce)
        switch nonce {
        case .required(let nonce):
            guard let own else { throw .missing(.nonce) }
            guard Self.areEqual(own, nonce) else { throw .nonce }
        case .sameIfPresent(let nonce): guard own.map({ Self.areEqual($0, nonce) }) ?? true else { throw .nonce }
        case .absent: guard own == nil else { throw .nonce }
        case .unchecked: break
        }
    }

    /// A nonce and a hash are compared in a time that does not tell where they differ.
    private static func areEqual(_ left: WireText, _ right: WireText) -> Bool {
        ConstantTime.equal(left.utf8.span, right.utf8.span)
    }

    private func checkAuthentication(of claims: ClaimsSet, now: NumericDate) throws(ClaimsRejection) {
        if let maximumAuthenticationAge {
            guard let time = claims.authenticatedAt else { throw .missing(.authTime) }
            let age = time.duration(to: now)
            guard age <= maximumAuthenticationAge + leeway, age >= .zero - leeway else { throw .authenticationTime }
        }
        let context = try claims.textOrRejection(.acr)
        if !authenticationContexts.isEmpty {
            guard let context else { throw .missing(.acr) }
            guard authenticationContexts.contains(context) else { throw .authenticationContext }
        }
    }

    /// OpenID Connect Core §3.1.3.6 and §3.3.2.11: the left half of the digest, in base64url.
    private func checkHash(
        _ claim: Claim, of companion: Companion?, in claims: ClaimsSet, _ algorithm: SignatureAlgorithm,
        or rejection: ClaimsRejection
    ) throws(ClaimsRejection) {
        let own = try claims.textOrRejection(claim)
        guard let companion else { return }
        guard let own else {
            if companion.requiresHash { throw .missing(claim) }
            return
        }
        guard Self.areEqual(own, Self.hash(of: companion.text, algorithm)) else { throw rejection }
    }

    /// The `at_hash` of an access token, or the `c_hash` of a code, in an ID token that is signed by `algorithm`.
    package static func hash(of text: WireText, _ algorithm: SignatureAlgorithm) -> WireText {
        let digest = algorithm.hashFunction.digest(Array(text.utf8))
        return WireText(Base64URL.encode(Array(digest.prefix(digest.count / 2))))
    }

    private func checkSubject(of claims: ClaimsSet) throws(ClaimsRejection) {
        guard let own = claims.subject else { throw .missing(.sub) }
        guard (1...Self.longestSubject).contains(own.count), own.utf8.allSatisfy({ $0 < 0x80 }) else {
            throw .malformedSubject
        }
        if let subject, own != subject { throw .subject }
    }
}
