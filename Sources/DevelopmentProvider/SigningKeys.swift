import Cryptography
import ExternalText
import JOSE

/// The keys that the provider signs tokens with, oldest first. They are made when the first of them is needed.
///
/// A provider publishes the next key before it uses it and keeps publishing the former one after it, so that a relying
/// party that caches the key set can always verify.
struct SigningKeys: Sendable {
    private var keys: [PrivateJSONWebKey] = []
    /// The position of the key in use.
    private var active = 0
    /// A key that is never published.
    private var unpublishedKey: PrivateJSONWebKey?
    private var lastNumber = 0

    /// What a published key is used for.
    enum Role: String, Sendable {
        /// Signed tokens until the last rotation.
        case former
        case active
        /// Signs tokens after the next rotation.
        case next
    }

    /// The published keys with their roles, oldest first. One of them is active.
    mutating func published(_ algorithm: SignatureAlgorithm) -> [(role: Role, key: JSONWebKey)] {
        _ = activeKey(algorithm)
        return keys.enumerated().map { index, key in
            (index < active ? .former : index == active ? .active : .next, key.publicJWK)
        }
    }

    /// The key to sign with.
    mutating func activeKey(_ algorithm: SignatureAlgorithm) -> PrivateJSONWebKey {
        if keys.isEmpty { keys = [make(algorithm), make(algorithm)] }
        return keys[active]
    }

    /// A key whose `kid` is not in the key set.
    mutating func unpublished(_ algorithm: SignatureAlgorithm) -> PrivateJSONWebKey {
        if let key = unpublishedKey, key.publicJWK.misfit(for: algorithm) == nil { return key }
        let key = make(algorithm)
        unpublishedKey = key
        return key
    }

    /// Publishes the key that the next rotation puts into use. Does nothing when it is published already.
    mutating func publishNext(_ algorithm: SignatureAlgorithm) {
        _ = activeKey(algorithm)
        if active == keys.count - 1 { keys.append(make(algorithm)) }
    }

    /// Puts the next key into use: a new one, which was never published before, if there is no next key. The key that
    /// was in use stays published until the next rotation; older ones are removed.
    mutating func rotate(_ algorithm: SignatureAlgorithm) {
        publishNext(algorithm)
        keys.removeFirst(active)
        active = 1
    }

    private mutating func make(_ algorithm: SignatureAlgorithm) -> PrivateJSONWebKey {
        let kind: PrivateKey.Kind =
            switch algorithm {
            case .es256: .elliptic(.p256)
            case .es384: .elliptic(.p384)
            case .rs256, .ps256: .rsa(bits: 2048)
            case .edDSA: .ed25519
            }
        lastNumber += 1
        do {
            return PrivateJSONWebKey(
                try PrivateKey.generate(kind), keyID: WireText("key-\(lastNumber)-" + Secrets.make("").prefix(8)),
                algorithm: algorithm)
        } catch {
            fatalError("OpenSSL makes no key: \(error)")
        }
    }
}
