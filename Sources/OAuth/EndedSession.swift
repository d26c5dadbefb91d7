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

    /// Few sessions have ended, and many records are in memory: one that has none takes a word for it.
    private final class Content: Sendable {
        let time: Timestamp
        let cause: Cause
        let code: String?
        let errorCode: String?

        init(_ time: Timestamp, _ cause: Cause, _ code: String?, _ errorCode: String?) {
            self.time = time
            self.cause = cause
            self.code = code
            self.errorCode = errorCode
        }
    }

    private let content: Content

    package var time: Timestamp { content.time }
    package var cause: Cause { content.cause }
    /// The error code of the renewal that found it, as callers got it (`BrokerError.Code`); nil where no renewal did, and when an
    /// earlier build wrote the record.
    package var code: String? { content.code }
    /// The provider's error code in that answer; nil when it sent none.
    package var errorCode: String? { content.errorCode }

    package init(_ cause: Cause, at time: Timestamp, code: String? = nil, errorCode: String? = nil) {
        content = Content(time, cause, code, errorCode)
    }

    package static func == (one: EndedSession, other: EndedSession) -> Bool {
        (one.time, one.cause) == (other.time, other.cause)
            && (one.code, one.errorCode) == (other.code, other.errorCode)
    }
}
