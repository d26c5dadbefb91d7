package import CredentialStore
package import Cryptography
import OAuth
package import Reactor

/// Opens a file store together with the keys that seal it. The keys are in a file of the store's directory, unless they are
/// configured.
package enum EmbeddedStore {
    package enum Failure: Error, Sendable, CustomStringConvertible {
        /// The directory cannot be used. Retrying helps only after what the text names has been corrected.
        case store(FileStoreError)
        /// The records cannot be listed.
        case records(StoreError)
        /// The directory's keys cannot be parsed. An operator must correct the file.
        case keyring(directory: String, KeyringError)
        /// The directory has records and no keys. New keys would hide that the old ones are missing.
        case keysMissing(directory: String)
        /// The same for keys that are configured to be in another file.
        case keyFileMissing(path: String, directory: String)
        /// The configured file is missing, and the directory has keys of its own, which new keys would not replace.
        case keysElsewhere(path: String, directory: String)
        /// The configured file cannot be written. Whether a retry helps depends on the errno.
        case keyFile(path: String, SystemError)
        /// New keys cannot be made. Retrying later may help.
        case random

        package var description: String {
            switch self {
            case .store(let error): error.description
            case .records(let error): "\(error)"
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

    /// Opens the directory, and makes it where it is missing.
    /// - Parameters:
    ///   - masterKeys: the configured keys; nil for the keys of a file, which is made for an empty store only.
    ///   - keysFile: the file of the keys; nil for the directory's own file.
    ///   - report: called with each error of the disk. Must not block.
    package static func open(
        _ directory: String, masterKeys: SecretBytes?, keysFile: String? = nil,
        report: @escaping @Sendable (FileStoreError) -> Void
    ) async throws(Failure) -> (FileRecordStore, Keyring) {
        let store: FileRecordStore
        do throws(FileStoreError) {
            store = try await FileRecordStore(directory: directory, report: report)
        } catch {
            throw .store(error)
        }
        do throws(Failure) {
            let keys: String
            if let keysFile {
                keys = try await keysOfFile(keysFile, masterKeys, store, directory)
            } else if let masterKeys {
                keys = masterKeys.revealedText
            } else {
                keys = try await ownKeys(store, directory)
            }
            do throws(KeyringError) {
                return (store, try Keyring(parsing: keys))
            } catch {
                throw .keyring(directory: directory, error)
            }
        } catch {
            await store.close()
            throw error
        }
    }

    private static func ownKeys(_ store: FileRecordStore, _ directory: String) async throws(Failure) -> String {
        if let keys = try await ownKeys(store) { return keys }
        guard try await isEmpty(store) else { throw .keysMissing(directory: directory) }
        let keys = try newKeys()
        do throws(FileStoreError) {
            try await store.keep(.masterKeys, keys)
        } catch {
            throw .store(error)
        }
        return keys
    }

    private static func ownKeys(_ store: FileRecordStore) async throws(Failure) -> String? {
        do throws(FileStoreError) {
            return try await store.secret(.masterKeys)
        } catch {
            throw .store(error)
        }
    }

    private static func newKeys() throws(Failure) -> String {
        do throws(CryptographyError) {
            return try Keyring.generate(id: "k1")
        } catch {
            throw .random
        }
    }

    /// The keys of a file, which is made where it is missing.
    /// - Parameter keys: the content of the file; nil where there was none.
    private static func keysOfFile(
        _ path: String, _ keys: SecretBytes?, _ store: FileRecordStore, _ directory: String
    ) async throws(Failure) -> String {
        let isEmpty = try await isEmpty(store)
        if let keys {
            if isEmpty { try synchronize(path) }
            return keys.revealedText
        }
        if try await ownKeys(store) != nil { throw .keysElsewhere(path: path, directory: directory) }
        guard isEmpty else { throw .keyFileMissing(path: path, directory: directory) }
        let made = try newKeys()
        do throws(SystemError) {
            try SmallFile.create(path, Array((made + "\n").utf8))
        } catch {
            throw .keyFile(path: path, error)
        }
        return made
    }

    /// Makes the file's name durable before the first record is sealed: the process that made the file may have died before
    /// it did so. A process that may not synchronize the directory has not made the file.
    private static func synchronize(_ path: String) throws(Failure) {
        do throws(SystemError) {
            try SmallFile.synchronizeDirectory(of: path)
        } catch {
            if !error.isRefusal { throw .keyFile(path: path, error) }
        }
    }

    private static func isEmpty(_ store: FileRecordStore) async throws(Failure) -> Bool {
        do throws(StoreError) {
            for kind in RecordKind.allCases where try await !store.list(kind, tenant: nil, after: nil, limit: 1).isEmpty
            {
                return false
            }
            return true
        } catch {
            throw .records(error)
        }
    }
}
