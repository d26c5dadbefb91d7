internal import Cryptography
internal import OAuth
internal import Synchronization

/// The keys that were derived from the keyring's last: a derivation takes longer than the sealing that it is for.
///
/// Bounded, whatever number of tenants there is. May be used from any task.
final class DataKeys: Sendable {
    struct Name: Hashable {
        let key: KeyIdentity
        let tenant: TenantName
        let label: String
    }

    private let keys = Mutex<[Name: SecretBytes]>([:])

    /// Some 200 KiB.
    private static let limit = 1024

    /// The key of that name; made by `derive` where it is not at hand.
    func key(_ name: Name, _ derive: () -> SecretBytes) -> SecretBytes {
        if let key = keys.withLock({ $0[name] }) { return key }
        let key = derive()
        keys.withLock { keys in
            // Those in use are soon there again.
            if keys.count >= Self.limit { keys = [:] }
            keys[name] = key
        }
        return key
    }
}
