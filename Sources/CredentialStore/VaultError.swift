/// Why the vault cannot be unlocked.
package enum VaultError: Error, Equatable, Sendable, CustomStringConvertible {
    /// Records in the store were sealed under this key, and the keyring has no key with its id. The operator must add
    /// the key.
    case missingKey(id: String)
    /// Records in the store were sealed under a key with this id, and the keyring has a different key under the id. The
    /// operator must correct the keyring.
    case otherKey(id: String)
    /// The store failed. Whether retrying helps depends on the error.
    case store(StoreError)

    package var description: String {
        switch self {
        case .missingKey(let id):
            "records are sealed under the key '\(id)', which TOKEN_BROKER_MASTER_KEYS lacks"
        case .otherKey(let id):
            "records are sealed under a key '\(id)' that differs from the key '\(id)' in TOKEN_BROKER_MASTER_KEYS"
        case .store(.conflict): "another process is changing the store's check records"
        case .store(.unavailable): "the store does not answer"
        case .store(.damaged(let text)): "the store is damaged: \(text)"
        }
    }
}
