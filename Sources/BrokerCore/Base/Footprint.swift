internal import Cryptography
internal import ExternalText
internal import OAuth

/// What values take of memory beside their own fields, in bytes: an estimate by how glibc's malloc and Swift's
/// collections divide it.
package enum Footprint {
    /// An allocation of that size: malloc adds its length, rounds up to 16 and gives no less than 32.
    package static func allocation(_ size: Int) -> Int { max(32, (size + 8 + 15) & ~15) }

    /// A text; up to 15 bytes stand in the `String` itself.
    package static func text(_ text: String?) -> Int {
        guard let count = text?.utf8.count, count > 15 else { return 0 }
        return allocation(32 + count + 1)
    }

    package static func bytes(_ count: Int) -> Int { count == 0 ? 0 : allocation(32 + count) }

    package static func texts(_ texts: [String]) -> Int {
        texts.reduce(bytes(texts.count * MemoryLayout<String>.stride)) { $0 + text($1) }
    }

    static func secret(_ secret: SecretBytes?) -> Int {
        // An object that owns a buffer.
        secret.map { allocation(32) + allocation($0.count) } ?? 0
    }

    static func client(_ client: ClientFingerprint) -> Int {
        text(client.clientID.text) + texts(client.scopes.values) + text(client.clientUniqueKey?.text)
            + bytes(client.clientSecretDigest?.count ?? 0)
    }
}
