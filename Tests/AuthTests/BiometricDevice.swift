import Auth
import Cryptography
import Synchronization

/// A device's store of keys, which a test can have refuse, fail and forget.
final class BiometricDevice: DeviceKeyStore {
    /// What the store does in place of what it is asked for.
    enum Trouble: Sendable {
        case refusing
        case failing
        /// Signs with another key.
        case lying
    }

    private struct State {
        var keys: [String: PrivateKey] = [:]
        var trouble: Trouble?
        var isRemovalBroken = false
        var prompts: [BiometricOptions] = []
    }

    private let state = Mutex(State())
    private let kind: PrivateKey.Kind
    private let algorithm: DeviceKeyAlgorithm
    /// Whether signatures of ECDSA are in DER.
    private let signsInDER: Bool

    init(
        _ kind: PrivateKey.Kind = .elliptic(.p256), _ algorithm: DeviceKeyAlgorithm = .es256, signsInDER: Bool = false
    ) {
        self.kind = kind
        self.algorithm = algorithm
        self.signsInDER = signsInDER
    }

    var names: [String] { state.withLock { $0.keys.keys.sorted() } }
    /// With what options the user was asked.
    var prompts: [BiometricOptions] { state.withLock { $0.prompts } }

    func forgetKeys() { state.withLock { $0.keys = [:] } }
    func get(into trouble: Trouble?) { state.withLock { $0.trouble = trouble } }
    func breakRemoval(_ isBroken: Bool) { state.withLock { $0.isRemovalBroken = isBroken } }

    func makeKey(named name: String, options: BiometricOptions) async throws(DeviceKeyError) -> any DeviceKey {
        guard let key = try? PrivateKey.generate(kind) else { throw .unavailable(reason: "no key") }
        state.withLock { $0.keys[name] = key }
        return Key(device: self, key: key, options: options)
    }

    func key(named name: String, options: BiometricOptions) async throws(DeviceKeyError) -> (any DeviceKey)? {
        state.withLock { $0.keys[name] }.map { Key(device: self, key: $0, options: options) }
    }

    func removeKey(named name: String) async throws(DeviceKeyError) {
        let isBroken = state.withLock { state in
            if !state.isRemovalBroken { state.keys[name] = nil }
            return state.isRemovalBroken
        }
        if isBroken { throw .unavailable(reason: "the store is locked") }
    }

    private struct Key: DeviceKey {
        let device: BiometricDevice
        let key: PrivateKey
        let options: BiometricOptions

        var algorithm: DeviceKeyAlgorithm { device.algorithm }
        var publicKey: [UInt8] { key.publicKey.subjectPublicKeyInfo }

        func signature(of message: [UInt8]) async throws(DeviceKeyError) -> [UInt8] {
            let trouble = device.state.withLock { state in
                state.prompts.append(options)
                return state.trouble
            }
            switch trouble {
            case .refusing: throw .refusedByUser
            case .failing: throw .unavailable(reason: "no finger is enrolled")
            case .lying:
                guard let other = try? PrivateKey.generate(device.kind) else { throw .unavailable(reason: "no key") }
                return try Self.signature(of: message, by: other, device)
            case nil: return try Self.signature(of: message, by: key, device)
            }
        }

        private static func signature(
            of message: [UInt8], by key: PrivateKey, _ device: BiometricDevice
        ) throws(DeviceKeyError) -> [UInt8] {
            let scheme: SignatureScheme =
                switch device.algorithm {
                case .es256: .ecdsaP256
                case .rs256: .rsaPKCS1
                case .ps256: .rsaPSS
                case .edDSA: .ed25519
                }
            guard let signature = try? key.signature(of: message, by: scheme) else {
                throw .unavailable(reason: "no signature")
            }
            return device.signsInDER ? der(signature) : signature
        }

        /// The DER of r ‖ s (X9.62), as the Secure Enclave and the Android keystore make it.
        private static func der(_ signature: [UInt8]) -> [UInt8] {
            func integer(_ number: ArraySlice<UInt8>) -> [UInt8] {
                var bytes = Array(number.drop { $0 == 0 })
                if bytes.first.map({ $0 >= 0x80 }) ?? true { bytes.insert(0, at: 0) }
                return [0x02, UInt8(bytes.count)] + bytes
            }
            let numbers = integer(signature.prefix(32)) + integer(signature.suffix(32))
            return [0x30, UInt8(numbers.count)] + numbers
        }
    }
}
