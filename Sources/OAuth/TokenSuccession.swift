/// What becomes of an access token when a refresh has brought another one.
package enum AccessTokenAfterRefresh: String, Sendable, CaseIterable {
    /// It is valid until its own end.
    case lives
    /// The provider ends it at the refresh, or when the new one is first used.
    case ends
}

/// What becomes of a refresh token that was used.
package enum TokenRotation: String, Sendable, CaseIterable {
    /// Each refresh brings another refresh token, and the one before is spent.
    case always
    /// A refresh may bring another refresh token; whether it does is known by the answer only.
    case sometimes
    /// A refresh token is valid until its session ends, however often it is used.
    case never
}
