internal import ExternalText
internal import HTTPCodec

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
        var seconds = Int64(Self.longest.components.seconds)
        for field in fields.values("Cache-Control") {
            for directive in field.split(at: ",") {
                let parts = directive.trimmed.lowercased.split(at: "=", limit: 2)
                switch parts[0] {
                case "no-store", "no-cache": seconds = 0
                // Where a directive cannot be read or occurs twice, the shortest time counts (RFC 9111 §4.2.1).
                case "max-age": seconds = min(seconds, parts.count == 2 ? Self.seconds(parts[1]) ?? 0 : 0)
                default: break
                }
            }
        }
        // What a cache on the way has kept is older by this.
        let age = fields["Age"].flatMap { Self.seconds($0.trimmed) } ?? 0
        lifetime = min(max(.seconds(max(0, seconds - min(age, seconds))), Self.shortest), Self.longest)
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

    /// A number of seconds, with or without quotation marks; nil for another text.
    private static func seconds(_ text: WireText) -> Int64? {
        let digits = text.utf8.filter { $0 != UInt8(ascii: "\"") }
        guard !digits.isEmpty, digits.count <= 18, digits.allSatisfy({ $0 >= 0x30 && $0 <= 0x39 }) else { return nil }
        return digits.reduce(0) { $0 * 10 + Int64($1 - 0x30) }
    }

    /// A validator that can be sent back as it came; nil for another one.
    private static func validator(_ value: WireText?) -> WireText? {
        guard let value = value?.trimmed, !value.isEmpty, value.count <= longestValidator,
            value.utf8.allSatisfy({ $0 >= 0x20 && $0 < 0x7f })
        else { return nil }
        return value
    }
}
