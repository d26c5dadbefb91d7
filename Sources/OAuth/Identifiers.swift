import Cryptography
package import ExternalText
import HTTPCodec

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

    /// The tenant of the broker's own records. A request cannot name it, because a tenant name does not begin with a
    /// hyphen.
    package static let broker = TenantName(unchecked: "-")

    package static func < (left: TenantName, right: TenantName) -> Bool {
        left.description.utf8.lexicographicallyPrecedes(right.description.utf8)
    }
}

/// Identifies one set of credentials of a tenant: the design's `credentialsStorageKey`. `[A-Za-z0-9._~:@-]{1,200}`.
package struct StorageKey: Hashable, Sendable, Comparable, CustomStringConvertible {
    package let description: String

    /// The storage key of a request that names none.
    package static let `default` = StorageKey(unchecked: "default")

    /// Nil when `text` is not a storage key.
    package init?(_ text: String) {
        let bytes = text.utf8.span
        guard (1...Self.longest).contains(bytes.count), Self.end(bytes, from: 0) == bytes.count else { return nil }
        description = text
    }

    package init?(_ text: WireText) { self.init(text.text) }

    /// The longest storage key, in bytes.
    package static let longest = 200

    private static let userPrefix = "u-"
    /// The characters of a SHA-256 in base64url.
    private static let digestCount = 43

    /// The storage key of a user whom a provider names: one that no caller can choose and that two users never share, whatever
    /// identifiers they may choose at the provider. `u-` and the base64url of the SHA-256 of the issuer, a line feed and the
    /// identifier. A back end that knows both can compute it.
    /// - Parameter issuer: what issues the identifiers: the issuer, or where it is not known the token endpoint. It has no line
    ///   feed.
    package init(user identifier: WireText, of issuer: WireText) {
        let digest = SHA256.digest(Array(issuer.utf8) + [UInt8(ascii: "\n")] + Array(identifier.utf8))
        self.init(unchecked: Self.userPrefix + Base64URL.encode(digest))
    }

    /// Whether the storage key has the form of those that the broker makes of users' identifiers. Only a login can store anything
    /// under it for the first time.
    package var isOfUser: Bool {
        let bytes = description.utf8
        return bytes.count == Self.userPrefix.utf8.count + Self.digestCount && bytes.starts(with: Self.userPrefix.utf8)
            && !bytes.contains { ".~:@".utf8.contains($0) }
    }

    /// The first index, from `start` on, of a byte that a storage key cannot contain; `bytes.count` when there is none.
    package static func end(_ bytes: Span<UInt8>, from start: Int) -> Int {
        ByteRun.end(of: .identifier, bytes, from: start)
    }

    private init(unchecked text: String) { description = text }

    package static func < (left: StorageKey, right: StorageKey) -> Bool {
        left.description.utf8.lexicographicallyPrecedes(right.description.utf8)
    }
}

/// Identifies one set of credentials in the whole service. Every cache, lock and record uses both parts as its key.
package struct CredentialsID: Hashable, Sendable {
    package let tenant: TenantName
    package let storageKey: StorageKey

    package init(tenant: TenantName, storageKey: StorageKey) {
        self.tenant = tenant
        self.storageKey = storageKey
    }

    /// Hash values of the credentials of one tenant. They can be computed from bytes, so that a look-up need not create
    /// a `StorageKey`. The seed is random for each process, so that a client cannot choose keys that collide.
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
