import Cryptography
import ExternalText
import JSON
import OAuth

/// Estimates how much memory values take beside their own fields, in bytes, by the rules of glibc's malloc and of Swift's
/// collections.
package enum MemorySize {
    /// An allocation of that size: malloc adds 8 bytes for the length, rounds up to 16, and allocates 32 at least.
    package static func allocation(_ size: Int) -> Int { max(32, (size + 8 + 15) & ~15) }

    /// A text. Up to 15 bytes are in the `String` itself.
    package static func text(_ text: String?) -> Int {
        guard let count = text?.utf8.count, count > 15 else { return 0 }
        return allocation(32 + count + 1)
    }

    package static func bytes(_ count: Int) -> Int { count == 0 ? 0 : allocation(32 + count) }

    package static func texts(_ texts: [String]) -> Int {
        texts.reduce(bytes(texts.count * MemoryLayout<String>.stride)) { $0 + text($1) }
    }

    static func secret(_ secret: SecretBytes?) -> Int {
        // An object, and the buffer that it owns.
        secret.map { allocation(32) + allocation($0.count) } ?? 0
    }

    /// The object, its dictionary, of which three quarters are used at most, and the texts.
    static func facts(_ facts: ExtraFacts) -> Int {
        let entry = MemoryLayout<(key: WireText, value: JSONValue)>.stride
        return facts.members.reduce(allocation(24) + allocation(32 + 2 * entry * facts.members.count)) { sum, fact in
            sum + text(fact.key.text) + text(fact.value.string?.text)
        }
    }

    static func asked(_ asked: AskedGrant) -> Int {
        texts(asked.scopes?.values ?? []) + texts(asked.resources.map(\.text)) + text(asked.audience?.text)
            + allocation(64)
    }

    static func client(_ client: ClientFingerprint) -> Int {
        text(client.clientID.text) + texts(client.scopes.values) + text(client.clientUniqueKey?.text)
            + bytes(client.clientSecretDigest?.count ?? 0)
    }
}
