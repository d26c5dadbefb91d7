package import BrokerCore
internal import Cryptography
internal import ExternalText
internal import HTTPCodec
package import HTTPServer
internal import OAuth
internal import Reactor

/// Finds out who calls (RFC 6750 §2.1).
package struct CallerAuthenticator: Sendable {
    /// What memory tells of a caller.
    enum Finding {
        case admin(AdminName)
        case key(CallerKey)
        /// The store has to be asked for the key.
        case unknown
        case expired
    }

    /// Why a request has no caller.
    enum Refusal {
        case noKey, unknownKey

        var error: BrokerError {
            switch self {
            case .noKey: BrokerError(.unauthorized, "Send one Authorization field with `Bearer` and an API key.")
            case .unknownKey: BrokerError(.unauthorized, "The API key is unknown or has expired.")
            }
        }
    }

    private let adminKeys: AdminKeys
    private let keys: CallerKeyDirectory
    private let time: any Time

    package init(adminKeys: AdminKeys, keys: CallerKeyDirectory, time: any Time) {
        self.adminKeys = adminKeys
        self.keys = keys
        self.time = time
    }

    /// Does not suspend while the key is in memory.
    /// - Throws: `unauthorized` without a key, with more than one, or with one that is unknown or expired.
    package func caller(of request: Request) async throws(BrokerError) -> Caller {
        guard let digest = Self.digest(request.fields.lines.span, request.fields.bytes.span) else {
            throw Refusal.noKey.error
        }
        switch find(digest, at: time.clocks) {
        case .admin(let name): return .admin(name)
        case .key(let key): return .key(key)
        case .expired: throw Refusal.unknownKey.error
        case .unknown:
            guard let key = try await keys.key(digest: digest), !key.hasExpired(at: time.now) else {
                throw Refusal.unknownKey.error
            }
            return .key(key)
        }
    }

    /// The digest of the API key that a request presents; nil where it presents none, or more than one.
    /// - Parameters:
    ///   - lines: the request's field lines.
    ///   - bytes: what the lines count in.
    static func digest(_ lines: Span<FieldLine>, _ bytes: Span<UInt8>) -> SHA256.Words? {
        var value: Range<Int>?
        for index in lines.indices {
            guard case .authorization = lines[index].known else { continue }
            if value != nil { return nil }
            value = lines[index].value
        }
        guard let value, let token = BearerToken.find(bytes, value) else { return nil }
        return SHA256.words(bytes.extracting(token))
    }

    /// Finds the caller in memory.
    func find(_ digest: SHA256.Words, at clocks: (now: Timestamp, monotonic: MonotonicInstant)) -> Finding {
        if let name = adminKeys.name(digest: digest) { return .admin(name) }
        guard let key = keys.inMemory(digest: digest, now: clocks.monotonic) else { return .unknown }
        return key.hasExpired(at: clocks.now) ? .expired : .key(key)
    }
}
