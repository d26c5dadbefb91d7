package import CredentialStore
import Cryptography
package import ExternalText
package import HTTPCodec
package import HTTPSClient
package import JOSE
import JSON
package import OAuth
package import Postgres
package import Reactor

package enum LogLevel: String, Sendable, CaseIterable, Comparable {
    case debug
    case info
    case warning
    case error

    package static func < (left: LogLevel, right: LogLevel) -> Bool {
        allCases.firstIndex(of: left)! < allCases.firstIndex(of: right)!
    }
}

/// One member of a log line.
///
/// It has no constructor for text from outside, and none for tokens, codes, verifiers, secrets, keys, bodies and queries, so that
/// no line can contain them.
package struct LogField: Sendable {
    enum Value: Sendable {
        case text(String)
        case integer(Int64)
    }

    let name: StaticString
    let value: Value

    /// The identifier that the server gave a request.
    package static func request(_ id: RequestID) -> LogField { .init("request_id", id.text) }
    package static func tenant(_ tenant: TenantName) -> LogField { .init("tenant", tenant.description) }
    /// - Parameter id: the identifier of a registered client, which an operator has chosen, and never one that a request names.
    package static func registeredClient(_ id: String) -> LogField { .init("client_id", id) }
    package static func provider(_ preset: ProviderPreset) -> LogField { .init("provider", preset.name) }
    /// A profile's name, which was checked.
    package static func provider(named name: WireText) -> LogField { .init("provider", name.text) }
    package static func route(_ route: StaticString) -> LogField { .init("route", route.description) }
    package static func outcome(_ outcome: StaticString) -> LogField { .init("outcome", outcome.description) }
    package static func reason(_ reason: StaticString) -> LogField { .init("reason", reason.description) }
    package static func status(_ status: Status) -> LogField { .init("status", .integer(Int64(status.code))) }
    package static func code(_ code: BrokerError.Code) -> LogField { .init("code", code.rawValue) }
    package static func withheld(_ code: Withheld.Code) -> LogField { .init("withheld", code.rawValue) }
    package static func count(_ count: Int) -> LogField { .init("count", .integer(Int64(count))) }
    /// Counts after the store has lost commits: credentials that this process could store again, those that it did store again,
    /// ended sessions among them, and those that no process has.
    package static func kept(_ count: Int) -> LogField { .init("kept", .integer(Int64(count))) }
    package static func restored(_ count: Int) -> LogField { .init("restored", .integer(Int64(count))) }
    package static func endedAgain(_ count: Int) -> LogField { .init("ended_again", .integer(Int64(count))) }
    package static func lost(_ count: Int) -> LogField { .init("lost", .integer(Int64(count))) }
    static func recordKind(_ kind: RecordKind) -> LogField { .init("record", kind.rawValue) }
    package static func version(_ version: Int64) -> LogField { .init("version", .integer(version)) }
    /// The sequence number of an entry in the log of events.
    package static func sequence(_ sequence: Int64) -> LogField { .init("sequence", .integer(sequence)) }
    package static func level(_ level: CredentialsLevel) -> LogField { .init("credentials_level", level.rawValue) }
    package static func refresh(_ id: RefreshID) -> LogField { .init("refresh_id", id.text) }
    /// The name of the admin key that a request has.
    package static func admin(_ name: AdminName) -> LogField { .init("admin", name.description) }
    /// A variable of the configuration, without its value.
    /// - Parameter isFileForm: whether it is the variable's form that names a file.
    package static func variable(_ name: StaticString, isFileForm: Bool = false) -> LogField {
        .init("variable", name.description + (isFileForm ? "_FILE" : ""))
    }
    /// An environment variable that no build of the broker reads. The name has capitals, digits and `_` only; the value is not
    /// logged.
    package static func unknownVariable(_ name: String, meant suggestion: String?) -> [LogField] {
        [.init("variable", plain(name))] + (suggestion.map { [.init("suggestion", plain($0))] } ?? [])
    }

    private static func plain(_ name: String) -> String {
        let isPlain = name.utf8.allSatisfy {
            $0.isUppercaseLetter || $0.isDigit || $0 == UInt8(ascii: "_") || $0 == UInt8(ascii: "?")
        }
        return isPlain ? name : "-"
    }

    /// The identifier of a master key, which is no secret.
    package static func masterKey(_ id: String) -> LogField { .init("master_key", id) }
    /// What is wrong with the configuration, with the name of a variable and without its value.
    package static func configurationFault(_ text: String) -> LogField { .init("fault", text) }
    /// A file of the embedded store, by its name in the store's directory.
    package static func file(_ secret: StoreSecret) -> LogField { .init("file", secret.rawValue) }
    /// An API key, by its identifier.
    package static func apiKey(_ id: APIKeyID) -> LogField { .init("api_key", id.text) }
    /// The sender of a request: the peer of its connection, or the client that a trusted proxy names.
    package static func peer(_ address: NetworkAddress) -> LogField {
        .init("peer", address == .unspecified ? "unix" : address.description)
    }
    package static func address(_ address: SocketAddress) -> LogField { .init("address", address.description) }

    /// An address of a provider, as the tenant or the provider's metadata names it, without its query. A text that is not a URL
    /// is not logged.
    package static func endpoint(_ address: String) -> LogField {
        let url = URLTarget(address)?.description.utf8.prefix { $0 != UInt8(ascii: "?") }
        return .init("address", url.flatMap { String($0) } ?? "-")
    }

    /// A storage key may be a person's e-mail address, so its digest is logged, which is always the same for the same key.
    package static func credentials(_ id: CredentialsID) -> [LogField] {
        [.tenant(id.tenant), .init("storage_key_digest", id.storageKeyDigest)]
    }

    /// When the listener's certificate expires.
    package static func expires(_ time: Timestamp) -> LogField { .init("expires", time.description) }

    /// How many authorities' certificates the listener accepts of its clients.
    package static func clientAuthorities(_ count: Int) -> LogField {
        .init("client_authorities", .integer(Int64(count)))
    }

    /// The difference of two clocks.
    package static func difference(_ duration: Duration) -> LogField {
        .init("difference_ms", .integer(duration.milliseconds))
    }

    package static func duration(_ duration: Duration) -> LogField {
        .init("duration_us", .integer(duration.nanoseconds / 1000))
    }

    /// A method of the HTTP standards; `OTHER` for any other one.
    package static func method(_ method: Method) -> LogField { .init("method", knownName(of: method)) }

    package static func knownName(of method: Method) -> String {
        let known: Set<Method> = [.get, .head, .post, .put, .delete, .options]
        return known.contains(method) ? method.name : "OTHER"
    }

    /// The error's text contains nothing that came from a peer. The text of a damage names the record or its file, with the
    /// storage key, since an operator has to find it.
    package static func store(_ error: StoreError) -> LogField {
        switch error {
        case .conflict: .init("store_error", "conflict")
        case .unavailable: .init("store_error", "unavailable")
        case .damaged(let place): .init("store_error", "damaged: \(place)")
        }
    }

    /// The error with libpq's text, which has host names and users, and neither passwords nor statements.
    package static func database(_ error: PostgresError) -> LogField {
        .init("database_error", String(reflecting: error))
    }
    /// The identifier that a replica has made for its journal.
    static func journal(_ id: String) -> LogField { .init("journal", id) }
    /// The name of a machine that a replica runs on.
    static func host(_ name: String) -> LogField { .init("host", name) }
    package static func durability(_ flaw: DurabilityFlaw) -> LogField { .init("setting", flaw.text) }
    package static func databaseLink(_ link: PostgresLink) -> LogField { .init("link", link.description) }
    package static func listenLink(_ link: PostgresLink) -> LogField { .init("listen_link", link.description) }
    package static func fileStore(_ error: FileStoreError) -> LogField { .init("file_store_error", error.description) }
    package static func transport(_ error: TransportError) -> LogField { .init("transport_error", "\(error)") }
    package static func system(_ error: SystemError) -> LogField { .init("system_error", error.description) }

    /// The provider's error code, which `ErrorText` has checked.
    package static func providerError(_ error: TokenErrorResponse) -> LogField? {
        error.errorCode.map { .init("provider_error", $0) }
    }

    /// The provider's error code in an error for callers; nil where the provider sent none.
    package static func providerError(of error: BrokerError) -> LogField? {
        error.errorCode.map { .init("provider_error", $0) }
    }

    /// The name of a provider's public key, `-` where it has none that can be shown.
    package static func keyID(_ name: WireText?) -> LogField {
        .init("key_id", name.flatMap { ErrorText.presentable($0.prefix(64)) } ?? "-")
    }
    /// What is wrong with a provider's public key. The text has no part of it.
    package static func keyFault(_ fault: JSONWebKeyError) -> LogField { .init("fault", fault.description) }

    /// - Parameter code: the provider's error code, which `ErrorText` has checked.
    static func providerError(code: String) -> LogField { .init("provider_error", code) }

    /// The error's text for callers, which contains no secret.
    package static func detail(of error: BrokerError) -> LogField { .init("detail", error.detail) }

    /// Code and text of an error that a caller gets.
    package static func reason(of error: BrokerError) -> [LogField] {
        [.code(error.code), .detail(of: error)] + [.providerError(of: error)].compactMap(\.self)
    }

    /// A tenant's issuer, as it was configured, without its query. A text that is not a URL is not logged.
    package static func issuer(_ address: String) -> LogField {
        let isURL = URLTarget(address) != nil
        return .init(
            "issuer", isURL ? String(decoding: address.utf8.prefix { $0 != UInt8(ascii: "?") }, as: UTF8.self) : "-")
    }

    private init(_ name: StaticString, _ value: Value) {
        self.name = name
        self.value = value
    }

    private init(_ name: StaticString, _ text: String) {
        self.init(name, .text(text))
    }
}

extension CredentialsID {
    /// The digest of the storage key in the log: the first 12 hexadecimal digits of its SHA-256.
    package var storageKeyDigest: String {
        Hex.encode(Array(SHA256.digest(Array(storageKey.description.utf8)).prefix(6)))
    }
}

/// The identifier of a request: 32 hexadecimal digits that the server made. Any other text is refused.
package struct RequestID: Sendable, Hashable {
    let text: String

    package init(_ text: String) {
        let isOurs = (1...32).contains(text.utf8.count) && text.utf8.allSatisfy { $0.isDigit || $0.isLowercaseLetter }
        self.text = isOurs ? text : "-"
    }
}

/// The identifier of an API key in lists and in the log. A text that cannot be one of the broker's identifiers is refused.
package struct APIKeyID: Sendable, Hashable {
    let text: String

    package init(_ text: String) {
        let isOurs = (1...32).contains(text.utf8.count) && text.utf8.allSatisfy { $0.isDigit || $0.isLowercaseLetter }
        self.text = isOurs ? text : "-"
    }
}

/// The identifier of one attempt to renew credentials, in all its events and log lines: a UUID (RFC 9562).
package struct RefreshID: Sendable, Hashable {
    package let text: String

    package init() {
        // An identifier is not a secret, so the system's default generator is enough.
        let (high, low) = (UInt64.random(in: .min ... .max), UInt64.random(in: .min ... .max))
        var bytes = [high, low].flatMap { word in (0..<8).map { UInt8(truncatingIfNeeded: word >> (8 * $0)) } }
        // RFC 9562 §5.4: version 4 of variant 10.
        bytes[6] = bytes[6] & 0x0f | 0x40
        bytes[8] = bytes[8] & 0x3f | 0x80
        text = [0..<4, 4..<6, 6..<8, 8..<10, 10..<16].map { Hex.encode(Array(bytes[$0])) }.joined(separator: "-")
    }
}

/// Writes one JSON object per line.
package struct Log: Sendable {
    private let threshold: LogLevel
    private let time: any Time
    private let write: @Sendable ([UInt8]) -> Void

    package init(threshold: LogLevel, time: any Time, write: @escaping @Sendable ([UInt8]) -> Void) {
        self.threshold = threshold
        self.time = time
        self.write = write
    }

    package func isEnabled(_ level: LogLevel) -> Bool { level >= threshold }

    package func debug(_ event: StaticString, _ fields: [LogField]) { emit(.debug, event, fields) }
    package func info(_ event: StaticString, _ fields: [LogField]) { emit(.info, event, fields) }
    package func warning(_ event: StaticString, _ fields: [LogField]) { emit(.warning, event, fields) }
    package func error(_ event: StaticString, _ fields: [LogField]) { emit(.error, event, fields) }

    private func emit(_ level: LogLevel, _ event: StaticString, _ fields: [LogField]) {
        guard isEnabled(level) else { return }
        write(Self.line(level, event, fields, at: time.now))
    }

    /// A line of the log, without a newline.
    package static func line(
        _ level: LogLevel, _ event: StaticString, _ fields: [LogField], at time: Timestamp
    ) -> [UInt8] {
        JSONWriter.object { json in
            json.member("time", time.description)
            json.member("level", level.rawValue)
            json.member("event", event.description)
            if let trace = TraceContext.current { json.member("trace_id", trace.traceID) }
            for field in fields {
                switch field.value {
                case .text(let text): json.member(field.name.description, text)
                case .integer(let number): json.member(field.name.description, number)
                }
            }
        }
    }
}
