/// That a user's session under a storage key has ended without a logout, and why: told to callers until a user logs in
/// again or is logged out.
package struct EndedSession: Sendable, Equatable {
    /// Why credentials are gone. The raw values are the causes of `credentials.deauthorized`, and stand in records.
    package enum Cause: String, Sendable, CaseIterable {
        /// A caller asked for it.
        case logout
        /// The provider ended the session.
        case revoked
        /// The token is over and nothing can renew it.
        case expired
    }

    package var time: Timestamp
    package var cause: Cause

    package init(_ cause: Cause, at time: Timestamp) {
        self.time = time
        self.cause = cause
    }
}
