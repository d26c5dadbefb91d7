import Containers
import OAuth
import Reactor
import Synchronization

/// Clients that a provider has refused at its endpoint for revocations: it is asked again once in 30 s for all users together,
/// and at once when the tenant is configured anew. A client that is refused there may still be accepted for tokens, to which
/// another kind of authentication may belong.
final class RevocationPauses: Sendable {
    private struct Key: Hashable {
        let tenant: TenantName
        let client: ClientIdentity
    }

    private struct Pause {
        let configuration: Int64
        let until: MonotonicInstant
        let failure: RevocationFailure
    }

    /// For a pause that is forgotten, the provider is asked once more than needed.
    private let pauses = Mutex(BoundedTable<Key, Pause>(capacity: 4096))

    private static func key(_ tenant: Tenant) -> Key {
        Key(tenant: tenant.name, client: ClientIdentity(tenant.terms.client))
    }

    /// Why the provider is not asked now; nil where it may be. Where a pause has ended, one call is let through, and the next
    /// pause begins.
    func refusal(of tenant: Tenant, now: MonotonicInstant) -> RevocationFailure? {
        pauses.withLock { pauses in
            let key = Self.key(tenant)
            guard let pause = pauses[key], pause.configuration == tenant.version else { return nil }
            if pause.until > now {
                var failure = pause.failure
                failure.retryAfter = now.duration(to: pause.until)
                return failure
            }
            pauses[key] = Pause(
                configuration: pause.configuration, until: now.advanced(by: ClientFault.pause), failure: pause.failure)
            return nil
        }
    }

    /// Notes how a call has ended.
    func note(_ failure: RevocationFailure?, of tenant: Tenant, now: MonotonicInstant) {
        pauses.withLock { pauses in
            if let failure, failure.isOfClient {
                let pause = Pause(
                    configuration: tenant.version, until: now.advanced(by: ClientFault.pause), failure: failure)
                _ = pauses.setNewest(pause, forKey: Self.key(tenant))
            } else {
                _ = pauses.removeValue(forKey: Self.key(tenant))
            }
        }
    }
}
