/// A token of the provider that is signed.
package enum SignedToken: String, Sendable, CaseIterable {
    case access
    case refresh
    case id
}

/// What is wrong with a signed token, so that a relying party must refuse it.
package enum TokenDefect: String, Sendable, CaseIterable {
    /// The key is one that the provider does not publish, and so is its `kid`.
    case unpublishedKey = "unpublished_key"
    /// The key is one that the provider does not publish, and the `kid` is that of the key in use.
    case signature
    /// `alg` is `none`, and there is no signature.
    case unsigned
    /// `exp` was a second ago.
    case expired
    /// `iat` is an hour ahead.
    case issuedInFuture = "issued_in_future"
    case issuer
    case audience
    case subject
    case scope
    /// The `nonce` of another login.
    case nonce
    /// The `at_hash` of another access token.
    case accessTokenHash = "access_token_hash"
    /// Not a JWT at all.
    case opaque
}
