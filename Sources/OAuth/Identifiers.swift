package import ExternalText
internal import HTTPCodec

/// A tenant: one client registration at one provider. `[a-z0-9][a-z0-9-]{0,62}`.
package struct TenantName: Hashable, Sendable, Comparable, CustomStringConvertible {
    package let description: String

    /// Nil when `text` is not a tenant name.
    package init?(_ text: String) {
        let bytes = text.utf8
        guard (1...63).contains(bytes.count), bytes.first != UInt8(ascii: "-"),
            bytes.allSatisfy({ $0.isLowercaseLetter || $0.isDigit || $0 == UInt8(ascii: "-") })
        else { return nil }
        description = text
    }

    package init?(_ text: WireText) { self.init(text.text) }

    private init(unchecked text: String) { description = text }

    /// The broker's own records stand here. No caller can name it: a tenant name does not begin with a hyphen.
    package static let broker = TenantName(unchecked: "-")

    package static func < (left: TenantName, right: TenantName) -> Bool {
        left.description.utf8.lexicographicallyPrecedes(right.description.utf8)
    }
}

/// Names one set of credentials under a tenant: the design's `credentialsStorageKey`. `[A-Za-z0-9._~:@-]{1,200}`.
package struct StorageKey: Hashable, Sendable, Comparable, CustomStringConvertible {
    package let description: String

    /// What a request means that names none.
    package static let `default` = StorageKey(unchecked: "default")

    /// Nil when `text` is not a storage key.
    package init?(_ text: String) {
        let bytes = text.utf8.span
        guard (1...Self.longest).contains(bytes.count), Self.end(bytes, from: 0) == bytes.count else { return nil }
        description = text
    }

    package init?(_ text: WireText) { self.init(text.text) }

    /// In bytes.
    package static let longest = 200

    /// The first index from `start` on whose byte no storage key has; `bytes.count` where there is none.
    package static func end(_ bytes: Span<UInt8>, from start: Int) -> Int {
        ByteRun.end(of: .identifier, bytes, from: start)
    }

    /// Whether this is the storage key with that text.
    package func isNamed(_ text: Span<UInt8>) -> Bool {
        ByteRun.equal(description.utf8.span, text)
    }

    private init(unchecked text: String) { description = text }

    package static func < (left: StorageKey, right: StorageKey) -> Bool {
        left.description.utf8.lexicographicallyPrecedes(right.description.utf8)
    }
}

/// One set of credentials in the whole service: every cache, lock and record is keyed by both halves.
package struct CredentialsID: Hashable, Sendable {
    package let tenant: TenantName
    package let storageKey: StorageKey

    package init(tenant: TenantName, storageKey: StorageKey) {
        self.tenant = tenant
        self.storageKey = storageKey
    }

    /// Hashes of sets of credentials of one tenant, also of those that texts name, for look-ups that make no `StorageKey` of
    /// them. The same within one process, and nobody outside of it can tell which have one hash.
    package struct Hashing: Sendable {
        private static let seed = UInt64.random(in: .min ... .max)
        private let ofTenant: UInt64

        package init(_ tenant: TenantName) {
            ofTenant = ByteRun.hash(tenant.description.utf8.span, seed: Self.seed)
        }

        /// Of the tenant alone.
        package var tenantHash: Int { Int(truncatingIfNeeded: ofTenant) }

        package func hashValue(storageKey: Span<UInt8>) -> Int {
            Int(truncatingIfNeeded: ByteRun.hash(storageKey, seed: ofTenant))
        }

        package func hashValue(storageKey: StorageKey) -> Int {
            hashValue(storageKey: storageKey.description.utf8.span)
        }
    }
}

extension UInt8 {
    package var isLowercaseLetter: Bool { self >= UInt8(ascii: "a") && self <= UInt8(ascii: "z") }
    package var isUppercaseLetter: Bool { self >= UInt8(ascii: "A") && self <= UInt8(ascii: "Z") }
    package var isDigit: Bool { self >= UInt8(ascii: "0") && self <= UInt8(ascii: "9") }
}
