package import BrokerCore
internal import Cryptography
internal import ExternalText
internal import HTTPCodec
package import HTTPServer
internal import OAuth
internal import Reactor

/// Finds the caller of a request by its bearer token (RFC 6750 §2.1).
package struct CallerAuthenticator: Sendable {
    /// The result of a look-up in memory.
    enum Finding {
        case admin(AdminName, AdminRole)
        case key(CallerKey)
        /// The key is not in memory, so it must be read from the store.
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

    /// Finds the caller of a request. Suspends only if the key is not in memory.
    /// - Throws: `unauthorized` if the request has no key, more than one key, or a key that is unknown or expired.
    package func caller(of request: Request) async throws(BrokerError) -> Caller {
        guard let digest = Self.digest(request.fields.lines.span, request.fields.bytes.span) else {
            throw Refusal.noKey.error
        }
        switch find(digest, at: time.clocks) {
        case .admin(let name, let role): return .admin(name, role)
        case .key(let key): return .key(key)
        case .expired: throw Refusal.unknownKey.error
        case .unknown:
            guard let key = try await keys.key(digest: digest), !key.hasExpired(at: time.now) else {
                throw Refusal.unknownKey.error
            }
            return .key(key)
        }
    }

    /// The digest of the request's API key; nil if it has none or more than one.
    /// - Parameters:
    ///   - lines: the request's field lines.
    ///   - bytes: the bytes that the ranges of `lines` refer to.
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
        if let (name, role) = adminKeys.find(digest: digest) { return .admin(name, role) }
        guard let key = keys.inMemory(digest: digest, now: clocks.monotonic) else { return .unknown }
        return key.hasExpired(at: clocks.now) ? .expired : .key(key)
    }
}
