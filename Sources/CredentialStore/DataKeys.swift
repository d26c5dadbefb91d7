import Containers
import Cryptography
import OAuth
import Synchronization

/// A cache of the keys that were derived from the keys of the keyring, because deriving a key takes longer than sealing
/// a record with it.
///
/// Bounded for any number of tenants. May be used from any task.
final class DataKeys: Sendable {
    struct Name: Hashable {
        let key: KeyIdentity
        let tenant: TenantName
        let label: String
    }

    // Records are sealed and opened on any thread. About 200 KiB.
    private let keys = Mutex(BoundedTable<Name, SecretBytes>(capacity: 1024))

    /// The key of that name, from the cache or from `derive`.
    func key(_ name: Name, _ derive: () -> SecretBytes) -> SecretBytes {
        if let key = keys.withLock({ $0[name] }) { return key }
        let key = derive()
        keys.withLock { _ = $0.setNewest(key, forKey: name) }
        return key
    }

    /// Forgets all keys, also those that were derived from a key which the keyring does not have any more.
    func removeAll() { keys.withLock { $0.removeAll() } }
}
