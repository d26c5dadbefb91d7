package import CredentialStore
package import Cryptography

/// The file store together with the keys that seal it, which it keeps beside its records unless they are configured.
package enum EmbeddedStore {
    package enum Failure: Error, Sendable, CustomStringConvertible {
        /// Retrying does not help where the text says that another process has the directory open, or what is damaged.
        case store(FileStoreError)
        case keyring(directory: String, KeyringError)
        /// Beside records that other keys have sealed, new ones would hide that those are missing.
        case keysMissing(directory: String)
        case random

        package var description: String {
            switch self {
            case .store(let error): error.description
            case .keyring(let directory, let error): "the master keys in \(directory): \(error)"
            case .keysMissing(let directory):
                "\(directory) holds records, but its file \(StoreSecret.masterKeys.rawValue) is missing; put it back or "
                    + "configure the master keys"
            case .random: "the system's random source failed"
            }
        }
    }

    /// Opens the directory, makes it where it is missing.
    /// - Parameters:
    ///   - masterKeys: nil for the directory's own; new ones are made for an empty store only.
    ///   - report: told of each error of the disk.
    package static func open(
        _ directory: String, masterKeys: SecretBytes?, report: @escaping @Sendable (FileStoreError) -> Void
    ) async throws -> (FileRecordStore, Keyring) {
        let store = try await FileRecordStore(directory: directory, report: report)
        do {
            let keys: String
            if let masterKeys { keys = masterKeys.revealedText } else { keys = try await ownKeys(store, directory) }
            do throws(KeyringError) {
                return (store, try Keyring(parsing: keys))
            } catch {
                throw Failure.keyring(directory: directory, error)
            }
        } catch {
            await store.close()
            throw error
        }
    }

    private static func ownKeys(_ store: FileRecordStore, _ directory: String) async throws -> String {
        if let keys = try await store.secret(.masterKeys) { return keys }
        for kind in RecordKind.allCases where try await !store.list(kind, tenant: nil, after: nil, limit: 1).isEmpty {
            throw Failure.keysMissing(directory: directory)
        }
        let keys = try Keyring.generate(id: "k1")
        try await store.keep(.masterKeys, keys)
        return keys
    }
}
