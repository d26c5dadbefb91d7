/// Why a cryptographic operation gave no result. No case carries input.
package enum CryptographyError: Error, Equatable, Sendable {
    /// A key, nonce or message has a length that the algorithm does not take. The caller made a mistake.
    case invalidLength
    /// The sealed bytes were not made with this key, nonce and associated data, or were altered since. Retrying cannot
    /// help.
    case authenticationFailed
    /// The system gave no randomness. Nothing may be issued. Retrying later may help.
    case randomnessUnavailable
    /// libcrypto refused an operation that should always succeed, because memory was short or because of its
    /// configuration.
    case libraryFailure
}
