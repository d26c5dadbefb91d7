/// A user's session that ended without a logout, and why. Callers see this until a user logs in again or logs out.
package struct EndedSession: Sendable, Equatable {
    /// Why credentials were removed. The raw values are the causes of `credentials.deauthorized` and are stored in
    /// records.
    package enum Cause: String, Sendable, CaseIterable {
        /// A caller asked for a logout.
        case logout
        /// The provider ended the session.
        case revoked
        /// The token has expired and cannot be renewed.
        case expired
    }

    package var time: Timestamp
    package var cause: Cause
    /// The error code of the renewal that found it, as callers got it (`BrokerError.Code`); nil where no renewal did, and when an
    /// earlier build wrote the record.
    package var code: String?
    /// The provider's error code in that answer; nil when it sent none.
    package var errorCode: String?

    package init(_ cause: Cause, at time: Timestamp, code: String? = nil, errorCode: String? = nil) {
        self.time = time
        self.cause = cause
        self.code = code
        self.errorCode = errorCode
    }
}
