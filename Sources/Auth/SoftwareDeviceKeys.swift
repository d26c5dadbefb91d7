import BrokerCore
import Cryptography

/// A store of keys without hardware: keys on P-256, encrypted in the store of an environment, as its credentials are.
///
/// It is as strong as the environment's master key: a program that can read the store and that key can sign without the user. Use
/// hardware where there is any. Any task may use an instance.
public struct SoftwareDeviceKeys: DeviceKeyStore {
    private let environment: AuthEnvironment
    private let recognizeUser: @Sendable (BiometricOptions) async -> Bool

    /// - Parameters:
    ///   - environment: must be open whenever a key is made, used or removed.
    ///   - recognizeUser: asks the user for a proof of presence before each signature, and returns whether it was given. It is
    ///     the only thing that guards the keys within this program.
    public init(
        in environment: AuthEnvironment, recognizeUser: @escaping @Sendable (BiometricOptions) async -> Bool
    ) {
        self.environment = environment
        self.recognizeUser = recognizeUser
    }

    /// - Throws: `unavailable` if the store does not answer; a retry may help.
    public func makeKey(named name: String, options: BiometricOptions) async throws(DeviceKeyError) -> any DeviceKey {
        let key = try await run { keys throws(BrokerError) in try await keys.make(named: name) }
        return Key(key: key, options: options, recognizeUser: recognizeUser)
    }

    /// - Throws: `unavailable` if the store does not answer; a retry may help.
    public func key(
        named name: String, options: BiometricOptions
    ) async throws(DeviceKeyError) -> (any DeviceKey)? {
        let key = try await run { keys throws(BrokerError) in try await keys.key(named: name) }
        return key.map { Key(key: $0, options: options, recognizeUser: recognizeUser) }
    }

    /// - Throws: `unavailable` if the store does not answer; a retry may help.
    public func removeKey(named name: String) async throws(DeviceKeyError) {
        try await run { keys throws(BrokerError) in try await keys.remove(named: name) }
    }

    private func run<R: Sendable>(
        _ body: (SoftwareKeys) async throws(BrokerError) -> R
    ) async throws(DeviceKeyError) -> R {
        let opened: AuthEnvironment.Opened
        do throws(AuthError) {
            opened = try await environment.enter()
        } catch {
            throw .unavailable(reason: error.message)
        }
        defer { environment.leave() }
        do throws(BrokerError) {
            return try await body(opened.broker.softwareKeys)
        } catch {
            throw .unavailable(reason: error.detail)
        }
    }

    private struct Key: DeviceKey {
        let key: PrivateKey
        let options: BiometricOptions
        let recognizeUser: @Sendable (BiometricOptions) async -> Bool

        var algorithm: DeviceKeyAlgorithm { .es256 }
        var publicKey: [UInt8] { key.publicKey.subjectPublicKeyInfo }

        func signature(of message: [UInt8]) async throws(DeviceKeyError) -> [UInt8] {
            guard await recognizeUser(options) else { throw .refusedByUser }
            do throws(KeyError) {
                return try key.signature(of: message, by: .ecdsaP256)
            } catch {
                throw .unavailable(reason: error.description)
            }
        }
    }
}
