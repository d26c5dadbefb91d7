/// Why the vault does not unlock.
package enum VaultError: Error, Equatable, Sendable, CustomStringConvertible {
    /// Something in the store was sealed under this key, and the keyring has no key of that id. The operator must add
    /// it.
    case missingKey(id: String)
    /// Something in the store was sealed under a key of this id, which is not the one that the keyring has under it.
    /// The operator must correct it.
    case otherKey(id: String)
    /// The store failed; for whether retrying helps see the case.
    case store(StoreError)

    package var description: String {
        switch self {
        case .missingKey(let id):
            "records are sealed under the key '\(id)', which TOKEN_BROKER_MASTER_KEYS lacks"
        case .otherKey(let id):
            "records are sealed under another key '\(id)' than the one that TOKEN_BROKER_MASTER_KEYS holds"
        case .store(.conflict): "another process is changing the store's keys"
        case .store(.unavailable): "the store does not answer"
        case .store(.damaged(let text)): "the store is damaged: \(text)"
        }
    }
}
