package import ExternalText
package import JSON

/// Reads the members of a JSON object and remembers what is wrong with them, unknown ones included, so that a caller
/// hears of all faults at once.
package struct ObjectReader: ValueReader {
    private let members: [WireText: JSONValue]
    private let pointer: String
    private var known: Set<WireText> = []
    package private(set) var faults = FaultList()
    package var faultCount: Int { faults.count }

    package init(_ value: JSONValue, at pointer: String = "") {
        self.pointer = pointer
        if case .object(let members) = value {
            self.members = members
        } else {
            members = [:]
            faults.add(.init(pointer, "must be an object"))
        }
    }

    // MARK: Members. Each returns nil for a missing or null member and for one that is wrong.

    package mutating func string(_ name: WireText) -> WireText? { string(name, limit: 2048) }

    package mutating func string(_ name: WireText, limit: Int) -> WireText? {
        guard let value = take(name) else { return nil }
        guard case .string(let text) = value else { return fail(name, "must be a string") }
        if text.isEmpty { return fail(name, "must not be empty") }
        if text.count > limit { return fail(name, "must not be longer than \(limit) bytes") }
        if text.utf8.contains(where: { $0 < 0x20 || $0 == 0x7f }) {
            return fail(name, "must not contain control characters")
        }
        return text
    }

    package mutating func requiredString(_ name: WireText, limit: Int = 2048) -> WireText? {
        if isAbsent(name) { return fail(name, "is required") }
        return string(name, limit: limit)
    }

    package mutating func bool(_ name: WireText) -> Bool? {
        guard let value = take(name) else { return nil }
        guard case .bool(let flag) = value else { return fail(name, ValueRule.bool) }
        return flag
    }

    package mutating func integer(_ name: WireText, in range: ClosedRange<Int64>) -> Int64? {
        guard let value = take(name) else { return nil }
        guard case .integer(let number) = value, range.contains(number) else {
            return fail(name, ValueRule.integer(in: range))
        }
        return number
    }

    package mutating func number(_ name: WireText, in range: ClosedRange<Double>) -> Double? {
        guard let value = take(name) else { return nil }
        let number: Double? =
            switch value {
            case .integer(let number): Double(number)
            case .number(let number): number
            default: nil
            }
        guard let number, range.contains(number) else { return fail(name, ValueRule.number(in: range)) }
        return number
    }

    /// What a member can be that is a number, or one word in its place.
    package enum IntegerOrWord: Sendable, Equatable {
        case integer(Int64)
        case word
    }

    package mutating func integer(
        _ name: WireText, in range: ClosedRange<Int64>, or word: WireText
    ) -> IntegerOrWord? {
        guard let value = take(name) else { return nil }
        switch value {
        case .integer(let number) where range.contains(number): return .integer(number)
        case .string(let text) where text == word: return .word
        default:
            return fail(name, ValueRule.integer(in: range) + ", or \"\(word.text)\"")
        }
    }

    package mutating func requiredInteger(_ name: WireText, in range: ClosedRange<Int64>) -> Int64? {
        if isAbsent(name) { return fail(name, "is required") }
        return integer(name, in: range)
    }

    /// A value that the caller reads itself.
    package mutating func any(_ name: WireText) -> JSONValue? { take(name) }

    /// A member that may not be there beside others.
    package mutating func refuse(_ name: WireText, _ detail: String) {
        known.insert(name)
        if !isAbsent(name) { note(name, detail) }
    }

    /// A nested object that may be there and is not read here.
    @discardableResult
    package mutating func passOver(_ name: WireText) -> JSONValue? {
        guard let value = take(name) else { return nil }
        if case .object = value { return value }
        return fail(name, "must be an object")
    }

    /// A list of texts, each checked by `check`, which returns what is wrong or nil.
    package mutating func strings(
        _ name: WireText, allowsEmpty: Bool = true, atMost limit: Int = 100,
        check: (WireText) -> String? = { _ in nil }
    ) -> [WireText]? {
        guard let value = take(name) else { return nil }
        guard case .array(let elements) = value else { return fail(name, "must be a list of strings") }
        if elements.isEmpty, !allowsEmpty { return fail(name, "must not be empty") }
        if elements.count > limit { return fail(name, "must not have more than \(limit) members") }
        var texts: [WireText] = []
        for (index, element) in elements.enumerated() {
            let place = path(name) + "/\(index)"
            if case .string(let text) = element {
                if let wrong = check(text) { note(at: place, wrong) }
                texts.append(text)
            } else {
                note(at: place, "must be a string")
            }
        }
        return texts
    }

    package mutating func requiredStrings(_ name: WireText, check: (WireText) -> String?) -> [WireText]? {
        if isAbsent(name) { return fail(name, "is required") }
        return strings(name, allowsEmpty: false, check: check)
    }

    /// A nested object, read by `body`; its faults are added to these.
    package mutating func object<T>(_ name: WireText, _ body: (inout ObjectReader) -> T) -> T? {
        guard let value = take(name) else { return nil }
        var inner = ObjectReader(value, at: path(name))
        let result = body(&inner)
        inner.refuseUnknown()
        faults.add(inner.faults)
        return result
    }

    package mutating func requiredObject<T>(_ name: WireText, _ body: (inout ObjectReader) -> T) -> T? {
        if isAbsent(name) { return fail(name, "is required") }
        return object(name, body)
    }

    /// A list of objects, each read by `body`, which returns nil for one that it has noted a fault of.
    package mutating func objects<T>(
        _ name: WireText, atMost limit: Int, _ body: (inout ObjectReader) -> T?
    ) -> [T]? {
        guard let value = take(name) else { return nil }
        guard case .array(let elements) = value else { return fail(name, "must be a list of objects") }
        if elements.count > limit { return fail(name, "must not have more than \(limit) members") }
        var results: [T] = []
        for (index, element) in elements.enumerated() {
            var inner = ObjectReader(element, at: path(name) + "/\(index)")
            if let result = body(&inner) { results.append(result) }
            inner.refuseUnknown()
            faults.add(inner.faults)
        }
        return results
    }

    /// A text, or a list of texts, each checked by `check`, which returns what is wrong or nil.
    package mutating func stringOrStrings(_ name: WireText, check: (WireText) -> String?) -> [WireText]? {
        guard case .string(let text)? = members[name] else {
            return strings(name, allowsEmpty: false, atMost: 8, check: check)
        }
        known.insert(name)
        if let wrong = check(text) { note(name, wrong) }
        return [text]
    }

    /// An object whose members are all objects, each read by `body`.
    package mutating func objectMap<T>(
        _ name: WireText, atMost limit: Int, _ body: (inout ObjectReader) -> T
    ) -> [WireText: T]? {
        guard let value = take(name) else { return nil }
        guard case .object(let members) = value else { return fail(name, "must be an object of objects") }
        if members.count > limit { return fail(name, "must not have more than \(limit) members") }
        var map: [WireText: T] = [:]
        for (key, member) in members.sorted(by: { $0.key < $1.key }) {
            var inner = ObjectReader(member, at: path(name) + "/" + JSONValue.pointerToken(key))
            map[key] = body(&inner)
            inner.refuseUnknown()
            faults.add(inner.faults)
        }
        return map
    }

    /// An object whose members are facts that are kept with credentials; see `Extra.bounded`.
    package mutating func facts(_ name: WireText) -> [WireText: JSONValue] {
        guard let value = take(name) else { return [:] }
        guard case .object(let members) = value else { return fail(name, "must be an object") ?? [:] }
        let facts = Extra.bounded(members.sorted { $0.key < $1.key }.map { ($0.key, $0.value) })
        for key in members.keys.sorted() where facts[key] == nil {
            note(
                name, member: key,
                "must be a text, a number or a truth value; all members have room for \(Extra.longest) bytes")
        }
        return facts
    }

    /// An object whose members are all texts.
    package mutating func stringMap(_ name: WireText, atMost limit: Int = 50) -> [WireText: WireText]? {
        guard let value = take(name) else { return nil }
        guard case .object(let members) = value else { return fail(name, "must be an object of strings") }
        if members.count > limit { return fail(name, "must not have more than \(limit) members") }
        var map: [WireText: WireText] = [:]
        for (key, member) in members.sorted(by: { $0.key < $1.key }) {
            if case .string(let text) = member {
                map[key] = text
            } else {
                note(at: path(name) + "/" + JSONValue.pointerToken(key), "must be a string")
            }
        }
        return map
    }

    // MARK: Faults

    /// Adds a fault that the caller found.
    package mutating func note(_ name: WireText, _ detail: String) {
        note(at: path(name), detail)
    }

    /// Adds faults that the caller found, with their places in the whole input.
    package mutating func add(_ others: FaultList) { faults.add(others) }

    /// Adds a fault of a member of a nested object.
    package mutating func note(_ name: WireText, member: WireText, _ detail: String) {
        note(at: path(name) + "/" + JSONValue.pointerToken(member), detail)
    }

    private mutating func note(at pointer: String, _ detail: String) {
        faults.add(.init(pointer, detail))
    }

    /// Notes each member that was not read.
    package mutating func refuseUnknown() {
        for name in members.keys.filter({ !known.contains($0) }).sorted() {
            note(name, "is not a known member")
        }
    }

    private func path(_ name: WireText) -> String { pointer + "/" + JSONValue.pointerToken(name) }

    /// Whether the member is there and null.
    package func isNull(_ name: WireText) -> Bool { if case .null? = members[name] { true } else { false } }

    private func isAbsent(_ name: WireText) -> Bool {
        switch members[name] {
        case nil, .null?: true
        default: false
        }
    }

    private mutating func take(_ name: WireText) -> JSONValue? {
        known.insert(name)
        if case .null? = members[name] { return nil }
        return members[name]
    }

    private mutating func fail<T>(_ name: WireText, _ detail: String) -> T? {
        known.insert(name)
        note(name, detail)
        return nil
    }
}
