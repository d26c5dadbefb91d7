import CredentialStore
import Cryptography
import Reactor

/// Values in files of a directory, each encrypted by AES-256-GCM with a key that the program keeps elsewhere: an example of a
/// `CredentialsStorage`.
///
/// Several processes of one machine may use a directory with one key: a value is compared and replaced under a lock. A file is
/// replaced whole, and durable when the call returns. Only this user may read it.
public actor EncryptedFileStorage: CredentialsStorage {
    /// Why a file cannot be used.
    public enum Failure: Error, Sendable, Equatable, CustomStringConvertible {
        /// The key has not 32 bytes.
        case keyLength
        /// The file was encrypted with another key, belongs to another storage key, or was changed.
        case notOpened(path: String)
        /// The system refuses the file, or has no random numbers. The text says why; a retry may help.
        case system(String)

        public var description: String {
            switch self {
            case .keyLength: "the key must have 32 bytes"
            case .notOpened(let path): "\(path) does not open with this key"
            case .system(let reason): reason
            }
        }
    }

    /// More than a value and what is around it.
    private static let longestFile = 17 << 20

    private let directory: String
    private let key: SecretBytes
    // Files block: the actor has a thread of its own.
    private let thread: BlockingThread

    nonisolated public var unownedExecutor: UnownedSerialExecutor { unsafe thread.asUnownedSerialExecutor() }

    /// Opens nothing yet. A missing directory is made with the first value.
    /// - Parameters:
    ///   - directory: a path without a slash at its end.
    ///   - key: 32 random bytes, from a keychain or a key management service for example.
    /// - Throws: `keyLength`, and `system` where no thread can be started.
    public init(directory: String, key: [UInt8]) throws(Failure) {
        guard key.count == AES256GCM.keyCount else { throw .keyLength }
        self.directory = directory
        self.key = SecretBytes(key)
        do throws(SystemError) {
            thread = try BlockingThread(name: "storage")
        } catch {
            throw .system("\(error)")
        }
    }

    deinit { thread.shutDown() }

    /// - Throws: every case of `Failure` but `keyLength`.
    public func value(forKey name: String) throws -> [UInt8]? { try read(path(of: name), name) }

    /// - Throws: every case of `Failure` but `keyLength`.
    public func set(_ value: [UInt8], forKey name: String, replacing current: [UInt8]?) throws -> Bool {
        let path = path(of: name)
        do {
            try SmallFile.makeDirectories(above: path)
            let lock = try FileLock.take(path + ".lock")
            defer { extendLifetime(lock) }
            guard try read(path, name) == current else { return false }
            try SmallFile.replace(path, try sealed(value, name))
            return true
        } catch let error as SystemError {
            throw Failure.system("\(path): \(error)")
        }
    }

    /// A storage key may be any text, a file name may not.
    private func path(of name: String) -> String {
        directory + "/" + Hex.encode(Array(SHA256.digest(Array(name.utf8)).prefix(16))) + ".sealed"
    }

    private func read(_ path: String, _ name: String) throws(Failure) -> [UInt8]? {
        let bytes: [UInt8]
        do throws(SystemError) {
            guard SmallFile.exists(path) else { return nil }
            bytes = try SmallFile.read(path, limit: Self.longestFile)
        } catch {
            throw .system("\(path): \(error)")
        }
        guard bytes.count > AES256GCM.nonceCount else { throw .notOpened(path: path) }
        do throws(CryptographyError) {
            return try AES256GCM.open(
                Array(bytes.dropFirst(AES256GCM.nonceCount)), key: key,
                nonce: Array(bytes.prefix(AES256GCM.nonceCount)),
                associatedData: Array(name.utf8)
            ).revealedBytes
        } catch {
            throw .notOpened(path: path)
        }
    }

    private func sealed(_ value: [UInt8], _ name: String) throws(Failure) -> [UInt8] {
        do throws(CryptographyError) {
            let nonce = try SecureRandom.bytes(AES256GCM.nonceCount)
            return nonce
                + (try AES256GCM.seal(value, key: key, nonce: nonce, associatedData: Array(name.utf8)))
        } catch {
            throw .system("the value cannot be encrypted")
        }
    }
}
