/// Why bytes are no key that this service uses. No case carries a part of a key. Retrying cannot help, except after
/// `.libraryFailure`.
package enum KeyError: Error, Equatable, Sendable, CustomStringConvertible {
    /// The bytes have not the form of a key: damaged PEM or DER, a coordinate of the wrong length, more than
    /// `PrivateKey.longestPEM` octets.
    case malformed
    /// A PEM text that is protected by a passphrase.
    case encrypted
    /// A key for another algorithm, or on another curve than P-256, P-384 and Ed25519.
    case unsupported
    /// The coordinates are no point of the curve.
    case notOnCurve
    /// An RSA modulus outside `PublicKey.rsaBits`. Shorter ones can be factored, longer ones take too much time.
    case rsaSize(bits: Int)
    /// An RSA exponent that is even, less than 3, or longer than 32 bits.
    case rsaExponent
    /// An RSA modulus that can be factored although it is long: an even one, or one of the chips of CVE-2017-15361.
    case weakModulus
    /// The private part of a key does not belong to its public part.
    case inconsistent
    /// libcrypto refused an operation that should always succeed, because memory or randomness was short.
    case libraryFailure

    package var description: String {
        switch self {
        case .malformed: "The key is damaged or is no key."
        case .encrypted: "The key is encrypted with a passphrase."
        case .unsupported: "The key is for an algorithm or on a curve that is not supported."
        case .notOnCurve: "The key's coordinates are no point of its curve."
        case .rsaSize(let bits):
            "The RSA key has \(bits) bits; \(PublicKey.rsaBits.lowerBound) to \(PublicKey.rsaBits.upperBound) are "
                + "supported."
        case .rsaExponent: "The RSA key's exponent is not odd, less than 3, or longer than 32 bits."
        case .weakModulus: "The RSA key's modulus is weak."
        case .inconsistent: "The private part of the key does not belong to its public part."
        case .libraryFailure: "The cryptographic library failed."
        }
    }
}
