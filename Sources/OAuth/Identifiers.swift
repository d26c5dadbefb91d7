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
        let bytes = text.utf8
        guard (1...200).contains(bytes.count),
            bytes.allSatisfy({
                $0.isLowercaseLetter || $0.isUppercaseLetter || $0.isDigit || "._~:@-".utf8.contains($0)
            })
        else { return nil }
        description = text
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
}

extension UInt8 {
    package var isLowercaseLetter: Bool { self >= UInt8(ascii: "a") && self <= UInt8(ascii: "z") }
    package var isUppercaseLetter: Bool { self >= UInt8(ascii: "A") && self <= UInt8(ascii: "Z") }
    package var isDigit: Bool { self >= UInt8(ascii: "0") && self <= UInt8(ascii: "9") }
}
