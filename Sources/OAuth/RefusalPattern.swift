internal import ExternalText

/// An answer to a refresh by which a provider says that the session is over: data of a preset or of a tenant's
/// configuration.
package struct RefusalPattern: Sendable, Hashable {
    /// The HTTP status: one that `isAllowed(status:)` takes.
    package let status: Int
    /// The answer's `error`; nil for an answer that names none: an empty body, or a JSON object without the member.
    package let error: String?

    /// Nil when the status may not end a session, or when `error` is none that an answer could be found to have.
    package init?(status: Int, error: String?) {
        guard Self.isAllowed(status: status), error.map({ ErrorText.presentable(WireText($0)) != nil }) ?? true else {
            return nil
        }
        self.status = status
        self.error = error
    }

    /// 400...499 without 408 and 429, which are about the moment: the same request may succeed later (RFC 9110
    /// §15.5.9, RFC 6585 §4).
    package static func isAllowed(status: Int) -> Bool {
        (400...499).contains(status) && status != 408 && status != 429
    }

    /// A body that cannot be read names no error, and yet it is none without one: a proxy's page ends no session.
    package func matches(status: Int, _ answer: TokenErrorResponse) -> Bool {
        status == self.status && !answer.isMalformed && answer.error == error
    }
}
