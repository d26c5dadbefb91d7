/// Why the claims of a verified token are not those that were expected. No case carries a part of the token, so
/// `description` may be shown to anyone. Retrying with the same token cannot help, except after `.notYetValid` and
/// `.issuedInFuture`, where a clock may be wrong.
package enum ClaimsRejection: Error, Equatable, Sendable, CustomStringConvertible {
    /// The payload is no claims set, or a claim has the wrong type.
    case fault(ClaimsFault)
    /// A claim that must be there is not.
    case missing(Claim)
    /// The token is signed by an algorithm that is not expected.
    case algorithm
    case issuer
    /// The token is not for this client or service.
    case audience
    /// The token is also for a client that is not trusted.
    case untrustedAudience
    /// `azp` names another client.
    case authorizedParty
    case expired
    /// `nbf` is in the future.
    case notYetValid
    /// `iat` is further in the future than the expectation permits.
    case issuedInFuture
    /// `iat` is longer ago than the expectation permits.
    case issuedTooLongAgo
    /// The token belongs to another authorization request, or to none.
    case nonce
    /// The user authenticated longer ago than the expectation permits, or in the future.
    case authenticationTime
    /// The user did not authenticate in one of the ways that were asked for.
    case authenticationContext
    /// The token belongs to another access token.
    case accessTokenHash
    /// The token belongs to another authorization code.
    case codeHash
    /// `sub` is empty, longer than 255 bytes or not ASCII.
    case malformedSubject
    /// The token is about another user.
    case subject
    /// The token has not all scopes that are expected.
    case scope

    package var description: String {
        switch self {
        case .fault(let fault): fault.description
        case .missing(let claim): "The token has no claim \(claim.rawValue)."
        case .algorithm: "The token is signed by an algorithm that is not allowed."
        case .issuer: "The token was issued by another issuer."
        case .audience: "The token is for another audience."
        case .untrustedAudience: "The token is also for an audience that is not trusted."
        case .authorizedParty: "The token was issued to another client."
        case .expired: "The token has expired."
        case .notYetValid: "The token is not valid yet."
        case .issuedInFuture: "The token was issued in the future."
        case .issuedTooLongAgo: "The token was issued too long ago."
        case .nonce: "The token belongs to another login."
        case .authenticationTime: "The user authenticated too long ago."
        case .authenticationContext: "The user authenticated in a way that was not asked for."
        case .accessTokenHash: "The ID token belongs to another access token."
        case .codeHash: "The ID token belongs to another authorization code."
        case .malformedSubject: "The token's subject has the wrong form or length."
        case .subject: "The token is about another user."
        case .scope: "The token lacks a scope."
        }
    }
}
