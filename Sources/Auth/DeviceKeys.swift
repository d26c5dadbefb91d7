/// How a device recognises its user before it signs with a biometric key.
public struct BiometricOptions: Sendable, Equatable {
    /// What the device shows while it asks for a finger or a face, such as "Log in to the player".
    public var reason: String
    /// Whether the device's passcode counts in place of a finger or a face. Default false.
    public var allowsPasscode: Bool
    /// What the provider shows of this device in lists of sessions, such as `["model": "Phone"]`. Default: nothing. 8,192 bytes
    /// of JSON at most.
    public var deviceInfo: [String: String]

    /// Sets the options. Give the same to `enableBiometric` and to the calls that use the key: a device may bind a key to them.
    public init(reason: String, allowsPasscode: Bool = false, deviceInfo: [String: String] = [:]) {
        self.reason = reason
        self.allowsPasscode = allowsPasscode
        self.deviceInfo = deviceInfo
    }
}

/// How a key signs (RFC 7518 §3.1).
public enum DeviceKeyAlgorithm: String, Sendable, CaseIterable {
    /// ECDSA on P-256 with SHA-256: the Secure Enclave, the Android keystore, a TPM.
    case es256 = "ES256"
    /// RSASSA-PKCS1-v1_5 with SHA-256, by a key of 2048 to 4096 bits.
    case rs256 = "RS256"
    /// RSASSA-PSS with SHA-256 and a salt of 32 bytes, by a key of 2048 to 4096 bits.
    case ps256 = "PS256"
    /// Ed25519.
    case edDSA = "EdDSA"
}

/// Why a store of keys has not done what it was asked for.
public enum DeviceKeyError: Error, Sendable, Equatable {
    /// The user has cancelled, or was not recognised. A retry may help.
    case refusedByUser
    /// The device has destroyed the key, for example because another finger was enrolled. Only another key helps.
    case keyInvalidated
    /// The device has no such store, no finger or face is enrolled, or the store has failed.
    /// - Parameter reason: for developers, in English.
    case unavailable(reason: String)
}

/// A private key that does not leave its store, with its public part.
///
/// A store of hardware keys has a small type that conforms to this: on Apple's systems around a `SecKey` of the Secure Enclave,
/// on Android around an alias of the keystore, on Linux around a handle of the TPM.
public protocol DeviceKey: Sendable {
    /// How the key signs.
    var algorithm: DeviceKeyAlgorithm { get }
    /// The public key: the DER of a SubjectPublicKeyInfo (RFC 5280 §4.1), with an uncompressed point where it is of an elliptic
    /// curve. CryptoKit has it as `derRepresentation`, Android as `PublicKey.getEncoded()`.
    var publicKey: [UInt8] { get }

    /// Signs, after the device has recognised its user. May wait for the user for as long as the device does.
    /// - Returns: a signature by `algorithm`; one of ECDSA in DER, as devices make it, or as r ‖ s.
    /// - Throws: `refusedByUser`, `keyInvalidated`, `unavailable`.
    func signature(of message: [UInt8]) async throws(DeviceKeyError) -> [UInt8]
}

/// A device's store of keys, each of which signs only after the device has recognised its user.
///
/// `SoftwareDeviceKeys` is one without hardware. Any task may call the methods.
public protocol DeviceKeyStore: Sendable {
    /// Makes a key, in place of one that has the name already.
    /// - Parameters:
    ///   - name: 8 to 64 letters, digits, hyphens and underscores, unique among all installations. Part of a tag or an alias.
    ///   - options: how the device recognises the user before the key signs.
    /// - Throws: `refusedByUser`, `unavailable`.
    func makeKey(named name: String, options: BiometricOptions) async throws(DeviceKeyError) -> any DeviceKey

    /// The key of that name; nil where there is none.
    /// - Throws: `keyInvalidated`, `unavailable`.
    func key(named name: String, options: BiometricOptions) async throws(DeviceKeyError) -> (any DeviceKey)?

    /// Removes a key. Does nothing where there is none of that name.
    /// - Throws: `unavailable`.
    func removeKey(named name: String) async throws(DeviceKeyError)
}
