import ExternalText
import JSON

/// What a file says of an object that is otherwise at the broker.
struct Difference: Sendable {
    struct Member: Sendable {
        let name: WireText
        /// Nil for nothing, and for a secret, which the broker does not tell.
        let old: JSONValue?
        let new: JSONValue
    }

    let members: [Member]

    /// - Parameters:
    ///   - wanted: the members that the file names; what it does not name stays.
    ///   - isWhole: whether the file says all instead: what it does not name is taken away, and lists have an order.
    ///   - setsSecrets: whether a secret differs that the broker has already: it cannot be compared, since the broker does not tell it.
    init(wanted: JSONValue, current: JSONValue, isWhole: Bool = false, setsSecrets: Bool = false) {
        var wanted = wanted.object ?? [:]
        if isWhole { wanted.merge((current.object ?? [:]).mapValues { _ in .null }) { wanted, _ in wanted } }
        members = wanted.sorted { $0.key < $1.key }.compactMap { name, new in
            if SecretMembers.whole.contains(name) {
                let isSame = setsSecrets && new != .null ? false : Self.isSet(name, like: new, in: current)
                return isSame ? nil : Member(name: name, old: nil, new: new)
            }
            let differs = isWhole ? new != current[name] ?? .null : Self.differs(new, current[name])
            return differs ? Member(name: name, old: current[name], new: new) : nil
        }
    }

    /// Whether the broker has a secret where one is wanted, and none where none is; of several, whether it has as many.
    private static func isSet(_ name: WireText, like wanted: JSONValue, in current: JSONValue) -> Bool {
        let told = current[WireText(name.text + "_set")]
        let count = told?.integer ?? (told?.bool == true ? 1 : 0)
        return count == (wanted == .null ? 0 : Int64(wanted.array?.count ?? 1))
    }

    var isEmpty: Bool { members.isEmpty }

    /// The members that differ, as they shall be.
    var changes: [WireText: JSONValue] {
        Dictionary(uniqueKeysWithValues: members.map { ($0.name, $0.new) })
    }

    /// For people: `scopes: a, b -> a`.
    var lines: [String] {
        members.map { member in
            let new = AdministrationCommands.text(of: SecretMembers.shown(member.name, member.new))
            let old =
                member.old.map { AdministrationCommands.text(of: SecretMembers.shown(member.name, $0)) + " -> " } ?? ""
            return TextTable.shown("\(member.name.text): \(old)\(new)")
        }
    }

    /// Whether a merge patch (RFC 7396) of a value changes what is there. Lists of texts are sets, which the broker answers sorted, a
    /// text stands for a list of it, and an empty list or object for nothing.
    static func differs(_ wanted: JSONValue, _ current: JSONValue?) -> Bool {
        switch wanted {
        case .null: return !isNothing(current)
        case .object(let members):
            guard isNothing(current) || current?.object != nil else { return true }
            return members.contains { differs($0.value, current?[$0.key]) }
        case .array(let elements):
            if elements.isEmpty { return !isNothing(current) }
            guard let others = current?.array, others.count == elements.count else { return true }
            let texts = elements.compactMap { $0.string }
            if texts.count == elements.count { return Set(texts) != Set(others.compactMap { $0.string }) }
            return zip(elements, others).contains { !isSame($0, $1) }
        case .string: return current != wanted && current != .array([wanted])
        default: return current.map { !isSame(wanted, $0) } ?? true
        }
    }

    private static func isNothing(_ value: JSONValue?) -> Bool {
        value == nil || value == .null || value == .array([]) || value == .object([:])
    }

    /// Whether two values are the same, whichever way their numbers are written.
    private static func isSame(_ one: JSONValue, _ other: JSONValue) -> Bool {
        switch (one, other) {
        case (.integer(let one), .number(let other)): Double(one) == other
        case (.number(let one), .integer(let other)): one == Double(other)
        default: one == other
        }
    }
}
