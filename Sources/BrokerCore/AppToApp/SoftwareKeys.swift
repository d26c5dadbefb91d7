import CredentialStore
package import Cryptography
import OAuth

/// Private keys of programs that use the library, on P-256, sealed in the store.
package struct SoftwareKeys: Sendable {
    let vault: Vault
    let log: Log

    /// Makes a key, in place of one that has the name already.
    /// - Parameter name: up to 64 letters, digits, hyphens and underscores.
    /// - Throws: `storage_unavailable`, after which the key may be there all the same; `internal_error`.
    package func make(named name: String) async throws(BrokerError) -> PrivateKey {
        let key: PrivateKey
        let content: SecretBytes
        do throws(KeyError) {
            key = try PrivateKey.generate(.elliptic(.p256))
            content = try key.pem()
        } catch {
            throw BrokerError(.internalError, "The key could not be made.")
        }
        try await commit { () throws(StoreError) in
            let version = try await vault.version(of: Self.recordID(name))
            let record = OpenRecord(id: Self.recordID(name), version: (version ?? 0) + 1, content: content)
            let change: VaultChange = version.map { .replace(record, version: $0) } ?? .insert(record)
            return change
        }
        return key
    }

    /// Nil where there is no key of that name.
    package func key(named name: String) async throws(BrokerError) -> PrivateKey? {
        do throws(StoreError) {
            guard let record = try await vault.read(Self.recordID(name)) else { return nil }
            do throws(KeyError) {
                return try PrivateKey(pem: record.content)
            } catch {
                throw StoreError.damaged("the key \(name) cannot be read")
            }
        } catch {
            log.storeFailed(error, [])
            throw BrokerError(error)
        }
    }

    /// Does nothing where there is no key of that name.
    package func remove(named name: String) async throws(BrokerError) {
        try await commit { () throws(StoreError) in
            try await vault.version(of: Self.recordID(name)).map {
                VaultChange.remove(Self.recordID(name), version: $0)
            }
        }
    }

    private func commit(
        _ next: () async throws(StoreError) -> VaultChange?
    ) async throws(BrokerError) {
        for _ in 0..<8 {
            do throws(StoreError) {
                guard let change = try await next() else { return }
                return try await vault.commit([change])
            } catch .conflict {
                continue
            } catch {
                log.storeFailed(error, [])
                throw BrokerError(error)
            }
        }
        throw BrokerError(.retryableError, "The key kept changing. Try again.", retryAfter: 1)
    }

    private static func recordID(_ name: String) -> RecordID { RecordID(.softwareKey, .broker, key: name) }
}
