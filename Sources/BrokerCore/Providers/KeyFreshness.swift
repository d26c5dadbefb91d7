import ExternalText
import HTTPCodec

/// How long an answer with keys may be believed, and what a later request for them can say (RFC 9111 §4, RFC 9110 §13).
struct KeyFreshness: Sendable, Equatable {
    /// The longest time, and the time where the answer says nothing.
    static let longest: Duration = .seconds(3600)
    /// The shortest time, for an answer that says that it may not be kept: a provider is not asked for each token.
    static let shortest: Duration = .seconds(30)

    private static let longestValidator = 1024

    /// From `shortest` to `longest`.
    let lifetime: Duration
    /// `ETag`, for `If-None-Match`.
    let entityTag: WireText?
    /// `Last-Modified`, for `If-Modified-Since`.
    let lastModified: WireText?

    init(_ fields: Fields) {
        let longest = Self.longest.components.seconds
        lifetime = max(.seconds(CacheControl.freshSeconds(fields, unstated: longest, limit: longest)), Self.shortest)
        entityTag = Self.validator(fields["ETag"])
        lastModified = Self.validator(fields["Last-Modified"])
    }

    private init(lifetime: Duration, entityTag: WireText?, lastModified: WireText?) {
        self.lifetime = lifetime
        self.entityTag = entityTag
        self.lastModified = lastModified
    }

    /// The freshness after an answer 304: its lifetime, with the validators of before where it has none (RFC 9111 §3.2).
    func confirmed(by fields: Fields) -> KeyFreshness {
        let new = KeyFreshness(fields)
        return KeyFreshness(
            lifetime: new.lifetime, entityTag: new.entityTag ?? entityTag,
            lastModified: new.lastModified ?? lastModified)
    }

    /// Adds the conditions to a request's fields.
    func addConditions(to fields: inout Fields) {
        if let entityTag { fields.append("If-None-Match", entityTag.text) }
        if let lastModified { fields.append("If-Modified-Since", lastModified.text) }
    }

    /// A validator that can be sent back as it came; nil for another one.
    private static func validator(_ value: WireText?) -> WireText? {
        guard let value = value?.trimmed, !value.isEmpty, value.count <= longestValidator,
            value.utf8.allSatisfy({ $0 >= 0x20 && $0 < 0x7f })
        else { return nil }
        return value
    }
}
