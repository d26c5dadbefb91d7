package import CredentialStore
package import Cryptography
package import Reactor

/// The file store together with the keys that seal it, which it keeps beside its records unless they are configured.
package enum EmbeddedStore {
    package enum Failure: Error, Sendable, CustomStringConvertible {
        /// Retrying does not help where the text says that another process has the directory open, or what is damaged.
        case store(FileStoreError)
        case keyring(directory: String, KeyringError)
        /// Beside records that other keys have sealed, new ones would hide that those are missing.
        case keysMissing(directory: String)
        /// The same where the keys are configured to stand in a file of their own.
        case keyFileMissing(path: String, directory: String)
        /// The directory has keys of its own, which new ones in another file would not open.
        case keysElsewhere(path: String, directory: String)
        case keyFile(path: String, SystemError)
        case random

        package var description: String {
            switch self {
            case .store(let error): error.description
            case .keyring(let directory, let error): "the master keys in \(directory): \(error)"
            case .keysMissing(let directory):
                "\(directory) holds records, but its file \(StoreSecret.masterKeys.rawValue) is missing; put it back or "
                    + "configure the master keys"
            case .keyFileMissing(let path, let directory):
                "\(directory) holds records, but the master keys' file \(path) is missing; put it back"
            case .keysElsewhere(let path, let directory):
                "the master keys' file \(path) is missing, and \(directory) has its own \(StoreSecret.masterKeys.rawValue); "
                    + "move that to \(path)"
            case .keyFile(let path, let error): "the master keys' file \(path) cannot be made or synchronized: \(error)"
            case .random: "the system's random source failed"
            }
        }
    }

    /// Opens the directory, makes it where it is missing.
    /// - Parameters:
    ///   - masterKeys: nil for those of a file; new ones are made for an empty store only.
    ///   - keysFile: the file of the keys; nil for the directory's own.
    ///   - report: told of each error of the disk.
    package static func open(
        _ directory: String, masterKeys: SecretBytes?, keysFile: String? = nil,
        report: @escaping @Sendable (FileStoreError) -> Void
    ) async throws -> (FileRecordStore, Keyring) {
        let store = try await FileRecordStore(directory: directory, report: report)
        do {
            let keys: String
            if let keysFile {
                keys = try await keptKeys(keysFile, masterKeys, store, directory)
            } else if let masterKeys {
                keys = masterKeys.revealedText
            } else {
                keys = try await ownKeys(store, directory)
            }
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
        guard try await isEmpty(store) else { throw Failure.keysMissing(directory: directory) }
        let keys = try Keyring.generate(id: "k1")
        try await store.keep(.masterKeys, keys)
        return keys
    }

    /// The keys of a file, which is made where it is missing.
    /// - Parameter keys: what the file holds; nil where there was none.
    private static func keptKeys(
        _ path: String, _ keys: SecretBytes?, _ store: FileRecordStore, _ directory: String
    ) async throws -> String {
        let isEmpty = try await isEmpty(store)
        do {
            if let keys {
                // The process that made the file may have died before its name was durable. Before anything is sealed,
                // that is made good; who may not do so has not made the file.
                if isEmpty {
                    do throws(SystemError) {
                        try SmallFile.synchronizeDirectory(of: path)
                    } catch {
                        if !error.isRefusal { throw error }
                    }
                }
                return keys.revealedText
            }
            if try await store.secret(.masterKeys) != nil {
                throw Failure.keysElsewhere(path: path, directory: directory)
            }
            guard isEmpty else { throw Failure.keyFileMissing(path: path, directory: directory) }
            let keys = try Keyring.generate(id: "k1")
            try SmallFile.create(path, Array((keys + "\n").utf8))
            return keys
        } catch let error as SystemError {
            throw Failure.keyFile(path: path, error)
        }
    }

    private static func isEmpty(_ store: FileRecordStore) async throws -> Bool {
        for kind in RecordKind.allCases where try await !store.list(kind, tenant: nil, after: nil, limit: 1).isEmpty {
            return false
        }
        return true
    }
}
