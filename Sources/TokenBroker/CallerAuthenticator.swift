package import BrokerCore
internal import Cryptography
internal import ExternalText
internal import HTTPCodec
package import HTTPServer
internal import OAuth

/// Finds out who calls (RFC 6750 §2.1).
package struct CallerAuthenticator: Sendable {
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
        let values = request.fields.values("Authorization")
        guard values.count == 1, let key = Self.bearerToken(values[0]) else {
            throw Self.unauthorized("Send one Authorization field with `Bearer` and an API key.")
        }
        let digest = SHA256.digest(Array(key))
        if let name = adminKeys.name(digest: digest) { return .admin(name) }
        guard let known = try await keys.key(digest: digest), known.expires.map({ $0 > time.now }) ?? true else {
            throw Self.unauthorized("The API key is unknown or has expired.")
        }
        return .key(known)
    }

    private static func bearerToken(_ value: WireText) -> Substring.UTF8View? {
        let scheme = value.utf8.prefix { $0 != UInt8(ascii: " ") }
        // The bit that tells the two cases of a letter apart, and makes no letter of anything else.
        guard scheme.lazy.map({ $0 | 0x20 }).elementsEqual("bearer".utf8) else { return nil }
        let token = value.utf8[scheme.endIndex...].drop { $0 == UInt8(ascii: " ") }
        guard (1...512).contains(token.count), token.allSatisfy({ $0 > 0x20 && $0 < 0x7f }) else { return nil }
        return token
    }

    private static func unauthorized(_ detail: String) -> BrokerError { BrokerError(.unauthorized, detail) }
}
