/// Why a cryptographic operation gave no result. None of the cases carries input.
package enum CryptographyError: Error, Equatable, Sendable {
    /// A key, nonce or message has a length that the algorithm does not take: the caller's mistake.
    case invalidLength
    /// What was to be opened was not sealed with this key, nonce and associated data, or was altered since. Retrying
    /// cannot help.
    case authenticationFailed
    /// The system gave no randomness. Nothing may be issued; retrying later may help.
    case randomnessUnavailable
    /// libcrypto refused an operation that should always succeed, for want of memory or by its configuration.
    case libraryFailure
}
