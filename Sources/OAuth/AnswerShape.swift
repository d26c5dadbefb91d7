package import ExternalText
import HTTPCodec
package import JSON

/// A JSON pointer (RFC 6901).
package struct JSONPointer: Sendable, Hashable {
    private let tokens: [WireText]

    /// Nil for a text that does not begin with a slash.
    package init?(_ text: WireText) {
        guard text.starts(with: "/") else { return nil }
        tokens = text.dropping(1).split(at: "/").map { token in
            Self.unescaped(token)
        }
    }

    /// `~1` stands for a slash and `~0` for a tilde.
    private static func unescaped(_ token: WireText) -> WireText {
        let parts = token.split(at: "~")
        return parts.dropFirst().reduce(parts[0]) { text, part in
            switch part.utf8.first {
            case UInt8(ascii: "0"): WireText(text.text + "~" + part.dropping(1).text)
            case UInt8(ascii: "1"): WireText(text.text + "/" + part.dropping(1).text)
            default: WireText(text.text + "~" + part.text)
            }
        }
    }

    /// What the pointer points at; nil where there is nothing, or null.
    package func value(in json: JSONValue) -> JSONValue? {
        var value = json
        for token in tokens {
            switch value {
            case .object(let members):
                guard let member = members[token] else { return nil }
                value = member
            case .array(let elements):
                guard let index = Int(token.text), elements.indices.contains(index) else { return nil }
                value = elements[index]
            default: return nil
            }
        }
        return value == .null ? nil : value
    }
}

/// How the answers of a provider are read, where they are not those of RFC 6749. Immutable.
package final class AnswerShape: Sendable {
    package enum Format: String, CaseIterable {
        case auto, json, form
    }

    /// Which of the tokens of an answer with two is used.
    package enum TokenUse: String, Sendable, CaseIterable {
        case user, bot
    }

    /// What an answer without a grant means.
    package enum Meaning: String, Sendable, CaseIterable {
        case sessionEnded = "session_ended"
        case configuration
        case transient
        case pending
        case slowDown = "slow_down"

        /// The error code of RFC 6749 and RFC 8628 that means the same.
        var error: String {
            switch self {
            case .sessionEnded: "invalid_grant"
            case .configuration: "unauthorized_client"
            case .transient: "temporarily_unavailable"
            case .pending: "authorization_pending"
            case .slowDown: "slow_down"
            }
        }
    }

    private struct ErrorRule {
        /// Nil for every status.
        let status: Int?
        let pointer: JSONPointer
        let value: WireText
        let meaning: Meaning

        init?(_ reader: inout ObjectReader) {
            status = reader.integer("status", in: 200...599).map { Int($0) }
            let pointer = AnswerShape.pointer(&reader, "pointer") ?? AnswerShape.errorPointer
            let (value, meaning) = (reader.requiredString("equals"), reader.choice("means", Meaning.self))
            guard let value, let meaning else { return nil }
            (self.pointer, self.value, self.meaning) = (pointer, value, meaning)
        }
    }

    private typealias Pointers = [WireText: [JSONPointer]]

    private let format: Format
    private let fields: Pointers
    private let userFields: Pointers
    private let tokenTypes: [WireText]
    private let errorRules: [ErrorRule]
    /// The names in `extra` and the parameters of the callback that they have their values from.
    package let callbackFields: [(name: WireText, parameter: WireText)]
    private let tokenFields: [(name: WireText, pointer: JSONPointer)]
    let isInMilliseconds: Bool

    private static let errorPointer = JSONPointer("/error")!

    init(_ reader: inout ObjectReader) {
        format = reader.choice("response_format", Format.self) ?? .auto
        fields = Self.pointers(&reader, "response_fields")
        userFields = Self.pointers(&reader, "user_response_fields")
        tokenTypes = reader.strings("token_types", atMost: 8) ?? []
        isInMilliseconds = reader.choice("expires_unit", Unit.self) == .milliseconds
        errorRules = reader.objects("error_rules", atMost: 32) { ErrorRule(&$0) } ?? []
        callbackFields = (reader.stringMap("callback_fields", atMost: 16) ?? [:]).sorted { $0.key < $1.key }
            .map { ($0.key, $0.value) }
        let tokenFields = reader.stringMap("token_fields", atMost: 16) ?? [:]
        for (name, text) in tokenFields where JSONPointer(text) == nil {
            reader.note("token_fields", member: name, Self.pointerRule)
        }
        self.tokenFields = tokenFields.sorted { $0.key < $1.key }
            .compactMap { name, text in JSONPointer(text).map { (name, $0) } }
    }

    private enum Unit: String, CaseIterable {
        case seconds, milliseconds
    }

    private static let pointerRule = "must be a JSON pointer, such as /data/access_token"

    private static let readable: Set<WireText> = [
        "access_token", "refresh_token", "expires_in", "expires_at", "scope", "token_type", "user_id", "id_token",
        "error", "refresh_token_expires_in", "authorization_expires_in", "earliest_refresh_at",
    ]

    private static func pointer(_ reader: inout ObjectReader, _ name: WireText) -> JSONPointer? {
        reader.value(name, rule: pointerRule) { JSONPointer($0) }
    }

    private static func pointers(_ reader: inout ObjectReader, _ member: WireText) -> Pointers {
        reader.object(member) { reader in
            var pointers: Pointers = [:]
            for name in readable.sorted() {
                let texts = reader.stringOrStrings(name) { JSONPointer($0) == nil ? pointerRule : nil }
                if let texts { pointers[name] = texts.compactMap { JSONPointer($0) } }
            }
            return pointers
        } ?? [:]
    }

    // MARK: Reading

    /// What an answer says: its members by the names of RFC 6749, and the facts beside the token that callers get as `extra`. What
    /// is no text, number or truth value is no such fact.
    typealias Content = (members: [WireText: JSONValue], extra: [WireText: JSONValue])

    /// Nil for an answer that is no object and no form.
    /// - Parameters:
    ///   - isForm: whether the answer says that it is a form.
    ///   - use: which of two tokens is wanted.
    ///   - isRefresh: whether it answers a refresh, so that it may have the wanted token alone.
    func content(of body: [UInt8], isForm: Bool, for use: TokenUse, isRefresh: Bool) -> Content? {
        guard let json = read(body, isForm: isForm), case .object(var members) = json else { return nil }
        let isOfUser =
            use == .user && !userFields.isEmpty
            && (!isRefresh || userFields["access_token"]?.contains { $0.value(in: json) != nil } == true)
        let fields = isOfUser ? userFields : fields
        for (name, pointers) in fields {
            members[name] = pointers.lazy.compactMap { $0.value(in: json) }.first
        }
        if tokenFields.isEmpty { return (members, [:]) }
        return (members, Extra.bounded(tokenFields.compactMap { name, at in at.value(in: json).map { (name, $0) } }))
    }

    private func read(_ body: [UInt8], isForm: Bool) -> JSONValue? {
        if format == .form || format == .auto && isForm {
            let pairs = try? FormEncoding.decode(body.span)
            // A provider that was to answer with a form may send its errors as JSON.
            if let pairs, !pairs.isEmpty, body.first != UInt8(ascii: "{") {
                let members = Dictionary(
                    pairs.map { ($0.name, JSONValue.string($0.value)) }, uniquingKeysWith: { $1 })
                // No parameter may occur twice (RFC 6749 §3.2), as no member of JSON may.
                return members.count == pairs.count ? .object(members) : nil
            }
        }
        // A user's name with half a surrogate pair must not keep the user from logging in.
        return (try? JSONValue(parsing: body)) ?? (try? JSONValue(repairing: body))
    }

    /// Whether a token of that type may be sent as a bearer token.
    func isUsable(tokenType type: WireText) -> Bool {
        type.equalsIgnoringCase("bearer") || tokenTypes.contains { type.equalsIgnoringCase($0) }
    }

    /// What an answer without a grant means by this profile; nil where no rule fits.
    package func meaning(ofAnswer body: [UInt8], status: Int) -> Meaning? {
        if errorRules.isEmpty { return nil }
        guard let json = read(body, isForm: false) ?? read(body, isForm: true) else { return nil }
        return errorRules.first { rule in
            guard rule.status == nil || rule.status == status else { return false }
            switch rule.pointer.value(in: json) {
            case .string(let text)?: return text == rule.value
            case .integer(let number)?: return WireText(String(number)) == rule.value
            case .bool(let flag)?: return WireText(flag ? "true" : "false") == rule.value
            default: return false
            }
        }?.meaning
    }

    /// Where an answer names its error.
    func error(in json: JSONValue) -> JSONValue? {
        guard let pointers = fields["error"] else { return json["error"] }
        return pointers.lazy.compactMap { $0.value(in: json) }.first
    }
}

/// Facts that a provider tells beside a token, for the callers of its API.
package enum Extra {
    /// In bytes of names and values.
    package static let longest = 4096

    /// Those facts that are texts, numbers or truth values, as many as there is room for, in their order.
    package static func bounded(_ facts: [(name: WireText, value: JSONValue)]) -> [WireText: JSONValue] {
        var (kept, size): ([WireText: JSONValue], Int) = ([:], 0)
        for (name, value) in facts {
            let length: Int
            switch value {
            case .string(let text): length = text.count
            case .integer, .number, .bool: length = 24
            default: continue
            }
            size += name.count + length
            if size <= longest { kept[name] = value }
        }
        return kept
    }
}
