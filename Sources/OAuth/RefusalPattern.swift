import ExternalText
import JSON

/// A response to a refresh with which a provider says that the session has ended. Presets and tenants configure these.
package struct RefusalPattern: Sendable, Hashable {
    /// The HTTP status, which `isAllowed(status:)` permits.
    package let status: Int
    /// The `error` of the response; nil for a response without one: an empty body, or a JSON object without this
    /// member.
    package let error: String?

    /// Nil when a response with this status must not end a session, or when a response cannot have this `error`.
    package init?(status: Int, error: String?) {
        guard Self.isAllowed(status: status), error.map({ ErrorText.presentable(WireText($0)) != nil }) ?? true else {
            return nil
        }
        self.status = status
        self.error = error
    }

    /// Reads a pattern of a profile or of a tenant; nil where the reader has noted a fault of it.
    package init?(_ reader: inout ObjectReader) {
        let status = reader.requiredInteger("status", in: 400...499)
        let error = reader.string("error", limit: 64)
        guard let status else { return nil }
        guard Self.isAllowed(status: Int(status)) else {
            reader.note("status", "must not be 408 or 429: those are about the moment, not the session")
            return nil
        }
        guard let pattern = RefusalPattern(status: Int(status), error: error?.text) else {
            reader.note("error", "must consist of letters, digits and . _ : -")
            return nil
        }
        self = pattern
    }

    /// 400 to 499 except 408 and 429. These two are transient: the same request may succeed later (RFC 9110 §15.5.9,
    /// RFC 6585 §4).
    package static func isAllowed(status: Int) -> Bool {
        (400...499).contains(status) && status != 408 && status != 429
    }

    /// A body that cannot be read does not count as a body without an error, so that an error page of a proxy ends no
    /// session.
    package func matches(status: Int, _ answer: TokenErrorResponse) -> Bool {
        status == self.status && !answer.isMalformed && answer.error == error
    }
}

extension MemberRule where Value == [RefusalPattern] {
    /// A list of at most 32.
    package static var refusals: MemberRule {
        MemberRule { reader, name, _ in
            reader.objects(name, atMost: 32) { RefusalPattern(&$0) }
        } write: { patterns, json in
            json.array { json in
                for pattern in patterns {
                    json.object { json in
                        json.member("status", pattern.status)
                        json.memberIfPresent("error", pattern.error)
                    }
                }
            }
        }
    }
}
