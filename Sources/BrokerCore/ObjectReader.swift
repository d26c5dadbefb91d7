package import JSON

/// Reads the members of a JSON object and remembers everything that is wrong with them, unknown ones included, so that
/// a caller hears of all faults at once.
package struct ObjectReader {
    private let members: [String: JSONValue]
    private let pointer: String
    /// As few as an object has members.
    private var known: [String] = []
    package private(set) var faults: [BrokerError.Fault] = []

    package init(_ value: JSONValue, at pointer: String = "") {
        self.pointer = pointer
        if case .object(let members) = value {
            self.members = members
        } else {
            members = [:]
            faults = [.init(pointer, "must be an object")]
        }
    }

    // MARK: Members. Each returns nil for a missing or null member and for one that is wrong.

    package mutating func string(_ name: String, limit: Int = 2048) -> String? {
        guard let value = take(name) else { return nil }
        guard case .string(let text) = value else { return fail(name, "must be a string") }
        if text.isEmpty { return fail(name, "must not be empty") }
        if text.utf8.count > limit { return fail(name, "must not be longer than \(limit) bytes") }
        if text.unicodeScalars.contains(where: { $0.value < 0x20 || $0.value == 0x7f }) {
            return fail(name, "must not contain control characters")
        }
        return text
    }

    package mutating func requiredString(_ name: String, limit: Int = 2048) -> String? {
        if isAbsent(name) { return fail(name, "is required") }
        return string(name, limit: limit)
    }

    package mutating func bool(_ name: String) -> Bool? {
        guard let value = take(name) else { return nil }
        guard case .bool(let flag) = value else { return fail(name, "must be true or false") }
        return flag
    }

    package mutating func integer(_ name: String, in range: ClosedRange<Int64>) -> Int64? {
        guard let value = take(name) else { return nil }
        guard case .integer(let number) = value, range.contains(number) else {
            return fail(name, "must be a whole number from \(range.lowerBound) to \(range.upperBound)")
        }
        return number
    }

    package mutating func requiredInteger(_ name: String, in range: ClosedRange<Int64>) -> Int64? {
        if isAbsent(name) { return fail(name, "is required") }
        return integer(name, in: range)
    }

    /// A list of texts, each checked by `check`, which returns what is wrong or nil.
    package mutating func strings(
        _ name: String, allowsEmpty: Bool = true, atMost limit: Int = 100,
        check: (String) -> String? = { _ in nil }
    ) -> [String]? {
        guard let value = take(name) else { return nil }
        guard case .array(let elements) = value else { return fail(name, "must be a list of strings") }
        if elements.isEmpty, !allowsEmpty { return fail(name, "must not be empty") }
        if elements.count > limit { return fail(name, "must not have more than \(limit) members") }
        var texts: [String] = []
        for (index, element) in elements.enumerated() {
            let place = "\(name)/\(index)"
            if case .string(let text) = element {
                if let wrong = check(text) { note(place, wrong) }
                texts.append(text)
            } else {
                note(place, "must be a string")
            }
        }
        return texts
    }

    package mutating func requiredStrings(_ name: String, check: (String) -> String?) -> [String]? {
        if isAbsent(name) { return fail(name, "is required") }
        return strings(name, allowsEmpty: false, check: check)
    }

    package mutating func choice<T: RawRepresentable & CaseIterable>(_ name: String, _ type: T.Type) -> T?
    where T.RawValue == String {
        guard let text = string(name) else { return nil }
        guard let value = T(rawValue: text) else {
            return fail(name, "must be one of " + T.allCases.map(\.rawValue).joined(separator: ", "))
        }
        return value
    }

    /// A nested object, read by `body`; its faults are added to these.
    package mutating func object<T>(_ name: String, _ body: (inout ObjectReader) -> T) -> T? {
        guard let value = take(name) else { return nil }
        var inner = ObjectReader(value, at: path(name))
        let result = body(&inner)
        inner.refuseUnknown()
        faults += inner.faults
        return result
    }

    /// A list of objects, each read by `body`, which returns nil for one that it has noted a fault of.
    package mutating func objects<T>(
        _ name: String, atMost limit: Int, _ body: (inout ObjectReader) -> T?
    ) -> [T]? {
        guard let value = take(name) else { return nil }
        guard case .array(let elements) = value else { return fail(name, "must be a list of objects") }
        if elements.count > limit { return fail(name, "must not have more than \(limit) members") }
        var results: [T] = []
        for (index, element) in elements.enumerated() {
            var inner = ObjectReader(element, at: path("\(name)/\(index)"))
            if let result = body(&inner) { results.append(result) }
            inner.refuseUnknown()
            faults += inner.faults
        }
        return results
    }

    /// An object whose members are all texts.
    package mutating func stringMap(_ name: String, atMost limit: Int = 50) -> [String: String]? {
        guard let value = take(name) else { return nil }
        guard case .object(let members) = value else { return fail(name, "must be an object of strings") }
        if members.count > limit { return fail(name, "must not have more than \(limit) members") }
        var map: [String: String] = [:]
        for (key, member) in members.sorted(by: { $0.key < $1.key }) {
            if case .string(let text) = member {
                map[key] = text
            } else {
                note("\(name)/\(JSONValue.pointerToken(key))", "must be a string")
            }
        }
        return map
    }

    // MARK: Faults

    /// Adds a fault that the caller found.
    package mutating func note(_ name: String, _ detail: String) {
        faults.append(.init(path(name), detail))
    }

    /// Throws `invalid_request` with every fault found, unknown members among them.
    package mutating func finish() throws(BrokerError) {
        refuseUnknown()
        if faults.isEmpty { return }
        throw BrokerError(
            .invalidRequest,
            faults.count == 1
                ? "\(faults[0].pointer.isEmpty ? "The body" : faults[0].pointer) \(faults[0].detail)."
                : "The body has \(faults.count) faults; see errors.",
            faults: Array(faults.prefix(Self.mostFaultsTold)))
    }

    /// More would make a long answer of any long body.
    private static let mostFaultsTold = 100

    private mutating func refuseUnknown() {
        for name in members.keys.filter({ !known.contains($0) }).sorted() {
            note(JSONValue.pointerToken(String(name.prefix(64))), "is not a known member")
        }
    }

    private func path(_ name: String) -> String { "\(pointer)/\(name)" }

    private func isAbsent(_ name: String) -> Bool {
        switch members[name] {
        case nil, .null?: true
        default: false
        }
    }

    private mutating func take(_ name: String) -> JSONValue? {
        known.append(name)
        let value = members[name]
        return value == .null ? nil : value
    }

    private mutating func fail<T>(_ name: String, _ detail: String) -> T? {
        known.append(name)
        note(name, detail)
        return nil
    }
}
