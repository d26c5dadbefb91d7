import BrokerCore
import ExternalText
import HTTPCodec
import OAuth

/// Reads the parameters of a query. Refuses repeated parameters, unknown parameters and broken escapes.
struct QueryReader: TextReader {
    private var values: [WireText: WireText] = [:]
    private var faults = FaultList()

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

    /// The parameter `storage_key`; `default` if it is not given.
    mutating func storageKey() -> StorageKey {
        value("storage_key", rule: StorageKey.rule) { StorageKey($0) } ?? .default
    }

    /// The parameter `wait`: the seconds that a long poll waits. More than 60 counts as 60. Text that is not a whole
    /// number is a fault.
    mutating func wait() -> Duration {
        value("wait", rule: "must be a whole number of seconds") { text in
            guard !text.isEmpty, text.utf8.allSatisfy(\.isDigit) else { return nil }
            return .seconds(min(WholeNumber.read(text.utf8.span) ?? 60, 60))
        } ?? .zero
    }

    mutating func noteUnknown(_ name: WireText) { note(name, "is not a known parameter") }

    mutating func note(_ name: WireText, _ detail: String) {
        // A person reads the answer, and an unknown name can be long.
        faults.add(.init(name.prefix(64).text, detail))
    }

    /// Throws `invalid_request` with every fault found. A parameter that was not read is a fault.
    mutating func finish() throws(BrokerError) {
        for name in values.keys.sorted() { noteUnknown(name) }
        try faults.check(in: "The query") { "The query parameter \($0.pointer)" }
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

extension StorageKeyPattern {
    static let rule = StorageKey.rule + ", and may end with one * behind them for all storage keys that begin with them"
}
