import CredentialStore

/// A storage that a program brings, for `AuthEnvironment.Storage.program`: an entry of a keychain, a file, a row.
///
/// An environment keeps everything in one value: the configurations, the credentials of all storage keys, and the last events.
/// So a change is stored whole or not at all, and a login cannot be half there. A value has some kilobytes for each user, and
/// 16 MiB at most. For more users than a hundred, use a directory or PostgreSQL. An environment of its own for each user, with a
/// key of its own, makes one value for each user.
///
/// The value changes with each login, refresh and logout. To remove everything, close the environment, and remove the value then.
/// `EncryptedFileStorage` is an example, and so is `KeychainStandIn` of the product `AuthTesting`.
///
/// Any task may call the methods. Both must be durable when they return, and have 10 seconds: a call that takes longer or throws
/// counts as one that did not reach the storage, and the call of the library throws `AuthError.Code.storageUnavailable`.
public protocol CredentialsStorage: Sendable {
    /// The value that is stored under the key; nil where there is none.
    func value(forKey key: String) async throws -> [UInt8]?

    /// Stores a value under the key, if what is stored there is still `current`.
    ///
    /// The comparison and the change must be one step for all that use the storage: a transaction, a lock, or an actor where only
    /// this process uses it. Without that, two refreshes can present one refresh token, and the provider can end the session.
    /// - Parameters:
    ///   - value: at most 16 MiB.
    ///   - current: nil means that nothing must be stored there.
    /// - Returns: whether `current` was stored. If it was not, nothing has changed.
    func set(_ value: [UInt8], forKey key: String, replacing current: [UInt8]?) async throws -> Bool
}

/// One value of a program's storage.
struct ProgramValue: ValueStorage {
    let storage: any CredentialsStorage
    let key: String

    func value() async throws -> [UInt8]? { try await storage.value(forKey: key) }

    func set(_ value: [UInt8], replacing current: [UInt8]?) async throws -> Bool {
        try await storage.set(value, forKey: key, replacing: current)
    }
}
