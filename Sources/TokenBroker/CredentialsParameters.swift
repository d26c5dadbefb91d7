import BrokerCore
import ExternalText
import HTTPCodec
import OAuth

/// The parameters of `GET /credentials`. Reading a query without escapes allocates no memory.
struct CredentialsParameters {
    private(set) var query = CredentialsQuery()
    /// The range of the storage key in the text that was read; nil if it has escapes or is not given.
    private var storageKeyRange: Range<Int>?
    /// The storage key if it has escapes; else nil.
    private var decodedStorageKey: StorageKey?

    /// The known parameters, in the order in which their faults are listed.
    private enum Parameter: Int, CaseIterable {
        case storageKey, policy, level, minimumLifetime, apiErrorSubStatus

        init?(_ name: Span<UInt8>) {
            switch name.count {
            case 5 where ByteRun.hasExactly("level", name, at: 0): self = .level
            case 6 where ByteRun.hasExactly("policy", name, at: 0): self = .policy
            case 7 where ByteRun.hasExactly("min_ttl", name, at: 0): self = .minimumLifetime
            case 11 where ByteRun.hasExactly("storage_key", name, at: 0): self = .storageKey
            case 20 where ByteRun.hasExactly("api_error_sub_status", name, at: 0): self = .apiErrorSubStatus
            default: return nil
            }
        }

        var name: String {
            switch self {
            case .storageKey: "storage_key"
            case .policy: "policy"
            case .level: "level"
            case .minimumLifetime: "min_ttl"
            case .apiErrorSubStatus: "api_error_sub_status"
            }
        }

        /// The rule for the parameter's value, in words.
        var rule: String {
            switch self {
            case .storageKey: StorageKey.rule
            case .policy: ValueRule.choice(CredentialsQuery.Policy.self)
            case .level: ValueRule.choice(CredentialsLevel.self)
            case .minimumLifetime: ValueRule.integer(in: CredentialsQuery.minimumLifetimeSeconds)
            case .apiErrorSubStatus: ""
            }
        }
    }

    /// The faults of a query.
    private struct Faults {
        var repeated: [WireText] = []
        /// A bit for each parameter whose value is not allowed.
        var invalid: UInt8 = 0
        /// The names that are not a parameter's, each once.
        var unknown: Set<WireText> = []
    }

    /// - Throws: `invalid_request` with every fault found.
    init(_ text: Span<UInt8>) throws(BrokerError) {
        if text.isEmpty { return }
        var faults: Faults?
        do throws(FormEncoding.Fault) {
            try read(text, &faults)
        } catch {
            throw BrokerError(error, in: "query")
        }
        guard let faults else { return }
        var reader = QueryReader()
        for name in faults.repeated { reader.note(name, "occurs more than once") }
        for parameter in Parameter.allCases where faults.invalid & 1 << parameter.rawValue != 0 {
            reader.note(WireText(parameter.name), parameter.rule)
        }
        for name in faults.unknown.sorted() { reader.noteUnknown(name) }
        try reader.finish()
    }

    /// Calls `body` with the bytes of the storage key.
    /// - Parameter text: the query that this value was read from.
    func withStorageKey<R>(in text: Span<UInt8>, _ body: (Span<UInt8>) -> R) -> R {
        if let storageKeyRange { return body(text.extracting(storageKeyRange)) }
        return body((decodedStorageKey ?? .default).description.utf8.span)
    }

    func storageKey(in text: Span<UInt8>) -> StorageKey {
        guard let storageKeyRange else { return decodedStorageKey ?? .default }
        return WireText(validating: text.extracting(storageKeyRange)).flatMap { StorageKey($0) } ?? .default
    }

    private mutating func read(_ text: Span<UInt8>, _ faults: inout Faults?) throws(FormEncoding.Fault) {
        var cursor = FormEncoding.Cursor()
        let isPlain = FormEncoding.Cursor.isPlain(text)
        var seen: UInt8 = 0
        while let (name, value) = try cursor.next(in: text) {
            let parameter: Parameter?
            if isPlain {
                parameter = Parameter(text.extracting(name))
            } else {
                parameter = Parameter(try cursor.name(name, in: text).utf8.span)
            }
            guard let parameter else {
                let other = try cursor.name(name, in: text)
                _ = try FormEncoding.Cursor.decode(text.extracting(value))
                if faults?.unknown.contains(other) ?? false {
                    faults?.repeated.append(other)
                } else {
                    Self.note(&faults) { $0.unknown.insert(other) }
                }
                continue
            }
            let bit: UInt8 = 1 << UInt8(parameter.rawValue)
            if seen & bit != 0 { Self.note(&faults) { $0.repeated.append(WireText(parameter.name)) } }
            seen |= bit
            let isAllowed: Bool
            if isPlain {
                isAllowed = take(text.extracting(value), of: parameter)
                if parameter == .storageKey { storageKeyRange = isAllowed ? value : nil }
            } else {
                let decoded = try FormEncoding.Cursor.decode(text.extracting(value))
                isAllowed = take(decoded.utf8.span, of: parameter)
                if parameter == .storageKey {
                    storageKeyRange = nil
                    decodedStorageKey = StorageKey(decoded)
                }
            }
            // Only a repeated parameter gets here twice, and then the query has a fault whatever the value is. The
            // fault of the last value is listed.
            if isAllowed { faults?.invalid &= ~bit } else { Self.note(&faults) { $0.invalid |= bit } }
        }
    }

    private static func note(_ faults: inout Faults?, _ change: (inout Faults) -> Void) {
        var noted = faults ?? Faults()
        change(&noted)
        faults = noted
    }

    /// Stores a value. Returns false if it is not allowed. A storage key is checked and not stored.
    private mutating func take(_ value: Span<UInt8>, of parameter: Parameter) -> Bool {
        switch parameter {
        case .storageKey:
            return (1...StorageKey.longest).contains(value.count) && StorageKey.end(value, from: 0) == value.count
        case .policy:
            guard let policy: CredentialsQuery.Policy = Self.choice(value) else { return false }
            query.policy = policy
        case .level:
            guard let level: CredentialsLevel = Self.choice(value) else { return false }
            query.lowestLevel = level
        case .minimumLifetime:
            guard let seconds = WholeNumber.read(value),
                CredentialsQuery.minimumLifetimeSeconds.contains(seconds)
            else { return false }
            query.minimumLifetime = .seconds(seconds)
        case .apiErrorSubStatus:
            query.refusedByAPI = APISubStatus.forcesRefresh(WireText(validating: value) ?? "")
        }
        return true
    }

    private static func choice<T: RawRepresentable & CaseIterable>(_ value: Span<UInt8>) -> T?
    where T.RawValue == String {
        for candidate in T.allCases where ByteRun.equal(candidate.rawValue.utf8.span, value) { return candidate }
        return nil
    }
}
