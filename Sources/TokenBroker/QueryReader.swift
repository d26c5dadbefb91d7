internal import BrokerCore
internal import ExternalText
internal import HTTPCodec
internal import OAuth

/// Reads the parameters of a query. Refuses repeated parameters, unknown parameters and broken escapes.
struct QueryReader {
    private var values: [WireText: WireText] = [:]
    private var faults: [BrokerError.Fault] = []

    /// A reader for a request without a query.
    init() {}

    init(_ query: String?) throws(BrokerError) {
        guard let query else { return }
        let pairs: [FormEncoding.Pair]
        do throws(FormEncoding.Fault) {
            pairs = try FormEncoding.decode(WireText(query))
        } catch {
            throw BrokerError(error, in: "query")
        }
        for pair in pairs {
            if values.updateValue(pair.value, forKey: pair.name) != nil {
                note(pair.name, "occurs more than once")
            }
        }
    }

    mutating func string(_ name: WireText) -> WireText? { values.removeValue(forKey: name) }

    mutating func integer(_ name: WireText, in range: ClosedRange<Int64>) -> Int64? {
        guard let text = string(name) else { return nil }
        guard let number = Self.number(text.utf8.span), range.contains(number) else {
            note(name, Self.rule(range))
            return nil
        }
        return number
    }

    /// The number that 1 to 18 decimal digits stand for; nil for any other text.
    static func number(_ text: Span<UInt8>) -> Int64? {
        guard (1...18).contains(text.count) else { return nil }
        var number: Int64 = 0
        for index in text.indices {
            guard text[index].isDigit else { return nil }
            number = number * 10 + Int64(text[index] - UInt8(ascii: "0"))
        }
        return number
    }

    static func rule(_ range: ClosedRange<Int64>) -> String {
        "must be a whole number from \(range.lowerBound) to \(range.upperBound)"
    }

    static func rule<T: RawRepresentable & CaseIterable>(_ type: T.Type) -> String where T.RawValue == String {
        "must be one of " + T.allCases.map(\.rawValue).joined(separator: ", ")
    }

    mutating func bool(_ name: WireText) -> Bool? {
        switch string(name) {
        case nil: return nil
        case "true": return true
        case "false": return false
        default:
            note(name, "must be true or false")
            return nil
        }
    }

    mutating func timestamp(_ name: WireText) -> Timestamp? {
        guard let text = string(name) else { return nil }
        if let time = Timestamp(rfc3339: text.text) { return time }
        note(name, "must be a time such as 2026-11-21T09:00:00Z")
        return nil
    }

    mutating func choice<T: RawRepresentable & CaseIterable>(_ name: WireText, _ type: T.Type) -> T?
    where T.RawValue == String {
        guard let text = string(name) else { return nil }
        if let value = T(text) { return value }
        note(name, Self.rule(type))
        return nil
    }

    /// The parameter `storage_key`; `default` if it is not given.
    mutating func storageKey() -> StorageKey {
        guard let text = string("storage_key") else { return .default }
        if let key = StorageKey(text) { return key }
        note("storage_key", StorageKey.rule)
        return .default
    }

    /// The parameter `wait`: the seconds that a long poll waits. More than 60 counts as 60. Text that is not a whole
    /// number is a fault.
    mutating func wait() -> Duration {
        guard let text = string("wait") else { return .zero }
        guard !text.isEmpty, text.utf8.allSatisfy(\.isDigit) else {
            note("wait", "must be a whole number of seconds")
            return .zero
        }
        return .seconds(text.count <= 18 ? min(Int64(text.text) ?? 60, 60) : 60)
    }

    mutating func noteUnknown(_ name: WireText) { note(name, "is not a known parameter") }

    mutating func note(_ name: WireText, _ detail: String) {
        // A person reads the answer, and an unknown name can be long.
        faults.append(.init(name.prefix(64).text, detail))
    }

    /// Throws `invalid_request` with every fault found. A parameter that was not read is a fault.
    mutating func finish() throws(BrokerError) {
        for name in values.keys.sorted() { noteUnknown(name) }
        if faults.isEmpty { return }
        throw BrokerError(
            .invalidRequest,
            faults.count == 1
                ? "The query parameter \(faults[0].pointer) \(faults[0].detail)."
                : "The query has \(faults.count) faults; see errors.",
            faults: faults)
    }
}

extension BrokerError {
    /// - Parameter what: the name of the text that was read, such as `query`.
    init(_ fault: FormEncoding.Fault, in what: String) {
        let detail =
            switch fault {
            case .malformed: "The \(what) is not well-formed: a broken percent escape or no UTF-8."
            case .tooManyPairs(let limit): "The \(what) has more than \(limit) parameters."
            case .nameTooLong(let limit): "The \(what) has a parameter with a name of more than \(limit) bytes."
            }
        self.init(.invalidRequest, detail)
    }
}

extension StorageKey {
    static let rule = "must be 1 to 200 characters of A-Z a-z 0-9 . _ ~ : @ -"
}
